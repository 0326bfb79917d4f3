"""Signed runs: an Ed25519 signature over manifest and tables, which shows who certified and that nothing was changed.

``signature.json`` holds the SHA-256 of each file of a finished run, parts of tables included, the public key and the
signature over a text of these hashes. Keys are PEM files, as ``openssl genpkey -algorithm ed25519`` writes them, or
those of ``ssh-keygen``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptdel.core.checks import check_names, check_text
from adaptdel.files import parse, write_json
from adaptdel.runs.parts import TABLE, TIMES_TABLE, RunTables
from adaptdel.runs.storage import MANIFEST, read_manifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = "signature.json"
FORMAT = 1
ALGORITHM = "Ed25519"
LARGEST_KEY = 2**16
_HEAD = "adaptdel signed run, format 1\n"  # so that no other signature by the same key is valid for a run


@dataclass(frozen=True)
class SigningKey:
    """A private key, and the file it was read from."""

    path: Path
    key: Ed25519PrivateKey


@dataclass(frozen=True)
class PublicKey:
    """A public key, and the file it was read from."""

    path: Path
    key: Ed25519PublicKey


def read_signing_key(path: Path) -> SigningKey:
    """Read a private key without a password; ValueError if the file holds none."""
    serialization, ed25519 = _library()
    data = _read_key(path)
    if b"PUBLIC KEY-----" in data or data.startswith(b"ssh-"):
        raise ValueError(f"{path}: is a public key: sign with the private one")
    ssh = b"OPENSSH PRIVATE KEY" in data
    try:
        load = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
        key = load(data, password=None)
    except TypeError:
        raise ValueError(f"{path}: the key is encrypted: sign with one that has no password") from None
    except Exception as error:  # the library raises errors of several kinds
        if "password" in str(error).lower():
            raise ValueError(f"{path}: the key is encrypted: sign with one that has no password") from None
        raise ValueError(f"{path}: not a private key in PEM: make one with {_GENERATE}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ValueError(f"{path}: must be a key of {ALGORITHM}: make one with {_GENERATE}")
    return SigningKey(path, key)


def read_public_key(path: Path) -> PublicKey:
    """Read a public key; ValueError if the file holds none."""
    serialization, ed25519 = _library()
    data = _read_key(path)
    if b"PRIVATE KEY-----" in data:
        raise ValueError(f"{path}: is a private key: verify with the public key, and keep the private key secret")
    try:
        load = serialization.load_ssh_public_key if data.startswith(b"ssh-") else serialization.load_pem_public_key
        key = load(data)
    except Exception:  # the library raises errors of several kinds
        raise ValueError(f"{path}: not a public key in PEM: {_EXTRACT} writes one") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise ValueError(f"{path}: must be a key of {ALGORITHM}: {_EXTRACT} writes one")
    return PublicKey(path, key)


def sign_run(folder: Path, key: SigningKey) -> None:
    """Sign a finished run; the same run and key give the same bytes."""
    files = _hashes(folder)
    signature = key.key.sign(_text(files))
    values = {
        "format": FORMAT,
        "algorithm": ALGORITHM,
        "public_key": _base64(key.key.public_key().public_bytes_raw()),
        "files": files,
        "signature": _base64(signature),
    }
    write_json(folder / SIGNATURE, values)


def signed_files(folder: Path) -> list[str]:
    """The files of a run that a signature covers: the manifest, and both tables or all their parts."""
    tables = RunTables(folder, read_manifest(folder).get("part_rows"))
    paths = [*tables.paths(TABLE), *tables.paths(TIMES_TABLE)]
    return [MANIFEST, *(path.relative_to(folder).as_posix() for path in paths)]


def drop_signature(folder: Path) -> None:
    """Delete the signature of a run that is about to change."""
    (folder / SIGNATURE).unlink(missing_ok=True)


def is_signed(folder: Path) -> bool:
    """Whether there is a signature, valid or not."""
    return (folder / SIGNATURE).exists()


def check_signature(folder: Path, public: PublicKey) -> list[str]:
    """List what is wrong with the signature of a run; empty if the key signed exactly these files."""
    from cryptography.exceptions import InvalidSignature

    path = folder / SIGNATURE
    try:
        values = check_names("it", parse(path.read_text(encoding="utf-8")), _FIELDS)
        if (values["format"], values["algorithm"]) != (FORMAT, ALGORITHM):
            raise ValueError(f"it must be of format {FORMAT} by {ALGORITHM}")
        names = signed_files(folder)
        stated = check_names("files", values["files"], names)
        signer, signature = (_bytes(name, values[name]) for name in ("public_key", "signature"))
    except (FileNotFoundError, NotADirectoryError):
        return [f"it is not signed: there is no {SIGNATURE}"]
    except (OSError, ValueError) as error:
        return [f"{SIGNATURE} cannot be read: {error}"]
    if signer != public.key.public_bytes_raw():
        return [f"it is signed with another key than that of {public.path}"]
    files = _hashes(folder)
    wrong = [f"{name} is not the file that was signed" for name in names if files[name] != stated[name]]
    try:
        public.key.verify(signature, _text(files))
    except InvalidSignature:
        wrong = wrong or ["the signature is not valid"]
    return wrong


def fingerprint(folder: Path) -> str:
    """The first digits of the SHA-256 of the key that a run states as its signer; "?" if it states none."""
    try:
        values = parse((folder / SIGNATURE).read_text(encoding="utf-8"))
        return hashlib.sha256(_bytes("public_key", values["public_key"])).hexdigest()[:12]
    except (OSError, ValueError, KeyError, TypeError):
        return "?"


_FIELDS = ("format", "algorithm", "public_key", "files", "signature")
_GENERATE = "openssl genpkey -algorithm ed25519 -out key.pem"
_EXTRACT = "openssl pkey -in key.pem -pubout -out public.pem"


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ImportError("signatures need cryptography: pip install 'adaptdel[sign]'") from None
    return serialization, ed25519


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_KEY + 1)
    except OSError as error:
        raise ValueError(f"{path}: the key cannot be read: {error.strerror or error}") from None
    if len(data) > LARGEST_KEY:
        raise ValueError(f"{path}: not a key: it has more than {LARGEST_KEY} bytes")
    return data


def _hashes(folder: Path) -> dict[str, str | None]:
    """The SHA-256 of each file; None for a missing file."""
    hashes: dict[str, str | None] = {}
    for name in signed_files(folder):
        try:
            with (folder / name).open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            hashes[name] = None
    return hashes


def _text(files: dict[str, str | None]) -> bytes:
    """The signed text: a header, and a line for each file."""
    return (_HEAD + "".join(f"{digest or '-'}  {name}\n" for name, digest in files.items())).encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(check_text(name, value), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{name} must be in base64") from None
