"""The secret that servers share: the same seed from the same file, and nothing weak is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptdel.certification.sampling import SECRET_BITS
from adaptdel.serve.credentials import read_shared_seed
from tests.run_files import run

SECRET = "4f1c9a" * 8
WEAK = "must hold at least 32 random characters without spaces, such as openssl rand -hex 32 writes"


def test_the_seed_is_a_function_of_the_secret(tmp_path: Path) -> None:
    for name, text in (("a", SECRET), ("b", f"\n{SECRET} \r\n"), ("c", SECRET[:-1] + "b")):
        (tmp_path / name).write_text(text, encoding="ascii")
    seeds = [read_shared_seed(tmp_path / name) for name in "abc"]
    expected = 0x7AFEE5C2AD871815BF2E721AD6B44BC956713FC7B4541A78B4577D08E270B262
    assert seeds[0] == seeds[1] == expected  # servers of different versions have to agree
    assert seeds[0] != seeds[2]
    assert all(0 <= seed < 2**SECRET_BITS for seed in seeds)


@pytest.mark.parametrize("content", [b"", b"short", SECRET[:31].encode(), b"with spaces " * 9, b"line\n" * 20])
def test_a_weak_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "seed"
    file.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_shared_seed(file)
    assert str(caught.value) == f"{file}: {WEAK}"


def test_a_secret_is_ascii(tmp_path: Path) -> None:
    file = tmp_path / "seed"
    file.write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match=r"must hold a secret in ASCII$"):
        read_shared_seed(file)


def test_seeds_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "seed"
    file.write_text(SECRET, encoding="ascii")
    for options in (["--seed", "3"], ["--seed-per-request"]):
        assert run("serve", tmp_path, "--seed-file", file, *options) == 2
        assert capsys.readouterr().err == "adaptdel: give only one of --seed, --seed-file and --seed-per-request\n"
