"""``adaptdel verify`` on files of certificates; runs are in tests/runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptdel.cli import main
from tests.cli.test_fuzz import Workspace


def test_a_file_of_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(text: str) -> tuple[int | str | None, str, str]:
        (tmp_path / "certificates.json").write_text(text)
        with pytest.raises(SystemExit) as stop:
            main(["verify", str(tmp_path / "certificates.json")])
        return stop.value.code, *capsys.readouterr()

    rows = Workspace(tmp_path).certificates
    lines = [json.dumps(row) for row in rows]
    hold = f"{len(rows)} of {len(rows)} certificates hold, proven in ball arithmetic\n"
    assert run("\n".join(lines))[:2] == run(json.dumps(rows, indent=2))[:2] == (0, hold)
    rows[3]["derived"]["radius"] += 1
    status, shown, _ = run("\n\n".join(map(json.dumps, rows)))
    assert status == 1
    assert shown.startswith("line 7: does not hold: ")
    for text, word in (
        (f"{lines[0]}\nnonsense\n", "line 2"),
        ('{"format": 1, "format": 1}', "'format' is repeated"),
        ('{"format": NaN}', "NaN"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no certificate"),
        (" ", "no certificate"),
    ):
        status, _, error = run(text)
        assert (status, error.count("\n")) == (2, 1)
        assert word in error
