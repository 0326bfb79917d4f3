"""Settings, names of models, and secrets: the same seed from the same file, and nothing weak is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptdel.certification.evidence import SECRET_BITS
from adaptdel.cli.serve import warnings
from adaptdel.serve.service import named_folder, read_shared_seed, read_token
from adaptdel.settings import ServeSettings
from tests.run_files import run

SECRET = "4f1c9a" * 8


def test_tokens_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADAPTDEL_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text("secret-token\n")
    assert read_token(None) is None
    assert read_token(file) == "secret-token"
    for content in ("", "\n", "two words", "ümlaut"):
        file.write_text(content)
        with pytest.raises(ValueError, match="token"):
            read_token(file)
    monkeypatch.setenv("ADAPTDEL_TOKEN", " from-environment ")
    assert read_token(None) == "from-environment"
    with pytest.raises(ValueError, match="either"):
        read_token(file)
    monkeypatch.setenv("ADAPTDEL_TOKEN", "")
    with pytest.raises(ValueError, match="the variable ADAPTDEL_TOKEN"):
        read_token(None)


def test_names_of_folders(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert named_folder(str(odd)) == ("a=b", odd)
    assert named_folder(f"name={tmp_path}") == ("name", tmp_path)
    with pytest.raises(ValueError, match="give NAME=FOLDER"):
        named_folder("a b=x")


def test_what_is_unsafe_is_said(tmp_path: Path) -> None:
    for name, mode in (("open", 0o644), ("closed", 0o640)):
        (tmp_path / name).touch(mode)
        (tmp_path / name).chmod(mode)
    assert len(warnings(ServeSettings(), "x" * 16, [tmp_path / "open", tmp_path / "closed"])) == 1
    for host in ("127.0.0.2", "::1", "localhost"):
        assert warnings(ServeSettings(host=host), None) == []
    for host in ("0.0.0.0", "192.0.2.1"):
        assert "--token-file" in warnings(ServeSettings(host=host), None)[0]
        assert warnings(ServeSettings(host=host), "x" * 16) == []
    assert len(warnings(ServeSettings(), "short")) == 1


def test_the_seed_is_a_function_of_the_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a", SECRET), ("b", f"\n{SECRET} \r\n"), ("c", SECRET[:-1] + "b")):
        (tmp_path / name).write_text(text, encoding="ascii")
    seeds = [read_shared_seed(tmp_path / name) for name in "abc"]
    expected = 0x7AFEE5C2AD871815BF2E721AD6B44BC956713FC7B4541A78B4577D08E270B262
    assert seeds[0] == seeds[1] == expected  # servers of different versions have to agree
    assert seeds[0] != seeds[2]
    assert all(0 <= seed < 2**SECRET_BITS for seed in seeds)
    assert run("serve", tmp_path, "--port", "0", "--seed-file", tmp_path / "a", "--seed-per-request") == 2
    assert "--seed-file" in capsys.readouterr().err
    for weak in (b"", SECRET[:31].encode(), b"with spaces " * 9, b"\xff" * 64):
        (tmp_path / "seed").write_bytes(weak)
        with pytest.raises(ValueError, match="seed: must hold"):
            read_shared_seed(tmp_path / "seed")
