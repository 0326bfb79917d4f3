"""Signed runs: what was signed is told from what was invented."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from adaptdel.runs.parts import TABLE
from adaptdel.runs.records import Totals
from adaptdel.runs.signature import (
    SIGNATURE,
    _text,
    check_signature,
    read_public_key,
    read_signing_key,
    sign_run,
    signed_files,
)
from adaptdel.runs.storage import MANIFEST, read_run, write_run
from tests.run_files import make_data, make_model, run

PEM, RAW = serialization.Encoding.PEM, serialization.NoEncryption()
PKCS8, SPKI = serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo


def write_pair(folder: Path, name: str = "key", seed: int = 1) -> tuple[Path, Path]:
    """A private and a public key in PEM."""
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32))
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(PEM, PKCS8, RAW))
    public.write_bytes(key.public_key().public_bytes(PEM, SPKI))
    return private, public


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, two pairs of keys, and a signed run."""
    folder = tmp_path_factory.mktemp("signed")
    make_model(folder / "model")
    make_data(folder / "test.jsonl", 15)
    write_pair(folder)
    write_pair(folder, "other", seed=2)
    assert certify(folder, folder / "run", "--sign", folder / "key.pem") == 0
    return folder


def certify(folder: Path, out: Path, *options: object) -> int:
    return run("certify", folder / "model", "--data", folder / "test.jsonl", "--out", out, *options)


def invent(source: Path, out: Path) -> Path:
    """A run whose votes are consistent and invented: it is without its last row."""
    found = read_run(source)
    rows = list(found.records())[:-1]
    totals = Totals.of(found.manifest)
    for row in rows:
        totals.add(row)
    write_run(out, found.manifest | {"totals": totals.to_dict()}, rows)
    shutil.copy(source / SIGNATURE, out / SIGNATURE)
    return out


def test_a_signed_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed = folder / "run"
    assert run("verify", signed, "--public-key", folder / "key.pub.pem") == 0
    assert capsys.readouterr() == (
        "15 of 15 certificates hold, proven in ball arithmetic\nthe signature is valid for the public key\n",
        "",
    )
    assert run("verify", signed) == 0
    assert "the run is signed (key " in (error := capsys.readouterr().err)
    assert "which was not checked: give --public-key" in error
    assert run("verify", signed, "--public-key", folder / "other.pub.pem") == 1
    assert "signed with another key" in capsys.readouterr().out
    for options, word in (([], "not checked"), (["--public-key", folder / "key.pub.pem"], "valid")):
        assert run("verify", signed, "--json", *options) == 0
        assert json.loads(capsys.readouterr().out)["signature"] == word


def test_what_was_invented_is_caught(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = invent(folder / "run", tmp_path / "run")
    assert run("verify", out) == 0  # nothing in it contradicts itself
    assert run("verify", out, "--public-key", folder / "key.pub.pem") == 1
    assert (
        f"the run: does not hold: {MANIFEST} is not the file that was signed; {TABLE} is not" in capsys.readouterr().out
    )
    for name in signed_files(folder / "run"):
        copied = tmp_path / name
        shutil.copytree(folder / "run", copied)
        with (copied / name).open("ab") as file:
            file.write(b"\n")
        public = read_public_key(folder / "key.pub.pem")
        assert check_signature(copied, public) == [f"{name} is not the file that was signed"]
    (copied / "times.parquet").unlink()
    assert check_signature(copied, public) == ["times.parquet is not the file that was signed"]


def test_a_forger_who_signs_hashes_of_his_own(tmp_path: Path, folder: Path) -> None:
    out = invent(folder / "run", tmp_path / "run")
    values = json.loads((out / SIGNATURE).read_text())
    other = read_signing_key(folder / "other.pem")
    sign_run(out, other)
    theirs = json.loads((out / SIGNATURE).read_text())
    (out / SIGNATURE).write_text(json.dumps(theirs | {"public_key": values["public_key"]}))
    public = read_public_key(folder / "key.pub.pem")
    assert check_signature(out, public) == ["the signature is not valid"]
    (out / SIGNATURE).write_text(json.dumps(values | {"files": theirs["files"]}))
    assert check_signature(out, public) == ["the signature is not valid"]


def test_an_unsigned_run(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certify(folder, tmp_path / "run") == 0
    capsys.readouterr()
    assert run("verify", tmp_path / "run", "--public-key", folder / "key.pub.pem") == 1
    assert "the run: does not hold: it is not signed" in capsys.readouterr().out
    assert certify(folder, tmp_path / "run", "--sign", folder / "key.pem") == 0  # finished before, signed now
    assert run("verify", tmp_path / "run", "--public-key", folder / "key.pub.pem") == 0
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(next(read_run(tmp_path / "run").certificates()).to_dict()))
    capsys.readouterr()
    assert run("verify", file, "--public-key", folder / "key.pub.pem") == 2
    assert "only runs are signed" in capsys.readouterr().err


def test_a_run_that_goes_on_is_not_signed_any_more(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "run"
    assert certify(folder, out, "--limit", 5, "--sign", folder / "key.pem") == 0
    assert (out / SIGNATURE).exists()
    assert certify(folder, out, "--limit", 10) == 0
    assert not (out / SIGNATURE).exists()
    assert certify(folder, out, "--sign", folder / "key.pem") == 0
    assert run("verify", out, "--public-key", folder / "key.pub.pem") == 0
    first = (out / SIGNATURE).read_bytes()
    assert certify(folder, out, "--sign", folder / "key.pem") == 0
    assert (out / SIGNATURE).read_bytes() == first
    assert certify(folder, out) == 0  # a finished run is left as it is
    assert (out / SIGNATURE).read_bytes() == first


def test_recertify_signs(tmp_path: Path, folder: Path) -> None:
    options = ["--out", tmp_path / "new", "--alpha", 0.01]
    assert run("recertify", folder / "run", *options, "--sign", folder / "other.pem") == 0
    assert run("verify", tmp_path / "new", "--public-key", folder / "other.pub.pem") == 0
    assert run("recertify", folder / "run", "--out", tmp_path / "plain") == 0
    assert not (tmp_path / "plain" / SIGNATURE).exists()


def test_keys_that_are_none(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    curve = ec.generate_private_key(ec.SECP256R1())
    private = {
        "damaged": (folder / "key.pem").read_bytes()[:60],
        "empty": b"",
        "binary": bytes(range(256)),
        "huge": b"x" * 100_000,
        "encrypted": key.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"secret")),
        "curve": curve.private_bytes(PEM, PKCS8, RAW),
        "public": (folder / "key.pub.pem").read_bytes(),
    }
    words = {"encrypted": "the key is encrypted", "curve": "must be a key of Ed25519", "public": "is a public key"}
    words |= {"huge": "not a key", "missing": "cannot be read"}
    for name in [*private, "missing", "folder"]:
        path = tmp_path / name
        if name in private:
            path.write_bytes(private[name])
        elif name == "folder":
            path.mkdir()
        for command in (
            ["certify", folder / "model", "--data", folder / "test.jsonl", "--out", tmp_path / "run", "--sign", path],
            ["recertify", folder / "run", "--out", tmp_path / "run", "--sign", path],
        ):
            assert run(*command) == 2
            error = capsys.readouterr().err
            assert error.startswith(f"adaptdel: {path}: ")
            assert words.get(name, "") in error
            assert error.count("\n") == 1
            assert not (tmp_path / "run").exists()  # nothing was begun
    for name, content in (
        ("damaged", b"-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n"),
        ("curve", curve.public_key().public_bytes(PEM, SPKI)),
        ("private", (folder / "key.pem").read_bytes()),
    ):
        (tmp_path / name).write_bytes(content)
        assert run("verify", folder / "run", "--public-key", tmp_path / name) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"adaptdel: {tmp_path / name}: ")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1, "format": 1}', "\x00", '{"public_key": 5}', "[" * 99999]
)
def test_signatures_that_are_none(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run" / SIGNATURE).write_text(text)
    assert run("verify", tmp_path / "run", "--public-key", folder / "key.pub.pem") == 1
    assert "the run: does not hold: signature.json cannot be read" in capsys.readouterr().out
    assert run("verify", tmp_path / "run") == 0
    assert "(key ?), which was not checked" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["format", "algorithm", "public_key", "files", "signature", "note"])
def test_fields_of_a_signature(tmp_path: Path, folder: Path, name: str) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    file = tmp_path / "run" / SIGNATURE
    values = json.loads(file.read_text())
    public = read_public_key(folder / "key.pub.pem")
    odd: list[Any] = [None, 2, "x", "", [], {}, base64.b64encode(b"x").decode()]
    for value in odd:
        file.write_text(json.dumps(values | {name: value}))
        assert check_signature(tmp_path / "run", public), (name, value)


def test_other_signatures_of_the_key_are_none_of_a_run(folder: Path) -> None:
    """What is signed begins with words that nothing else begins with."""
    assert _text(dict.fromkeys(signed_files(folder / "run"))) == (
        b"adaptdel signed run, format 1\n-  manifest.json\n-  certificates.parquet\n-  times.parquet\n"
    )


def test_keys_of_ssh(tmp_path: Path, folder: Path) -> None:
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
    private, public = tmp_path / "id_ed25519", tmp_path / "id_ed25519.pub"
    private.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, RAW))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        + b" me@here\n"
    )
    assert read_signing_key(private).key.private_bytes_raw() == bytes([1] * 32)
    assert check_signature(folder / "run", read_public_key(public)) == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed: apt-get install openssl")
def test_the_documented_commands_make_a_pair(tmp_path: Path, folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "read-a-certificate.md").read_text(encoding="utf-8")
    commands = [line for line in page.splitlines() if line.startswith("openssl ")]
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(command.split("#")[0].split(), cwd=tmp_path, capture_output=True, check=False)
        if done.returncode and b"ed25519" in done.stderr.lower():
            pytest.skip("this openssl does not know Ed25519")
        assert done.returncode == 0, done.stderr
    assert certify(folder, tmp_path / "run", "--sign", tmp_path / "key.pem") == 0
    assert run("verify", tmp_path / "run", "--public-key", tmp_path / "public.pem") == 0
