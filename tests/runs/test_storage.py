"""The folder of a run: reading what is no run, and writing one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel import Masking
from adaptdel.certification.certificate import Certificate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs import certify as certify_module
from adaptdel.runs.parts import TABLE, RunTables
from adaptdel.runs.records import label_text, label_value, record_of
from adaptdel.runs.storage import Run, read_run
from tests.run_files import examples, make_data, make_model, rewrite, run, setting_of, write_run


def test_reading_what_is_no_run(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(ValueError, match=r"not a run: there is no manifest.json"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="not the manifest of a run"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 9}')
    with pytest.raises(ValueError, match="the format must be 2, got 9: a newer version"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_bytes((whole / "manifest.json").read_bytes())
    with pytest.raises(ValueError, match="missing from a run that is finished according to its manifest"):
        read_run(tmp_path)


def test_tables_with_a_fitting_digest_that_are_none(tmp_path: Path, whole: Path) -> None:
    def refused(words: str) -> None:
        digests = RunTables(out).digests()
        rewrite(out, lambda manifest: manifest.update(files=digests))
        with pytest.raises(ValueError, match=words) as error:
            read_run(out)
        assert "\n" not in str(error.value)

    out = Path(shutil.copytree(whole, tmp_path / "run"))
    times, table = out / "times.parquet", out / TABLE
    pq.write_table(pq.read_table(times).slice(1), times)
    refused(f"times.parquet: must have the rows of {TABLE}")
    table.write_bytes(b"nonsense")
    refused("not a Parquet file")
    rows = pq.read_table(whole / TABLE)
    pq.write_table(
        rows.set_column(rows.column_names.index("radius"), "radius", rows["radius"].cast(pa.string())), table
    )
    refused("with their types")
    pq.write_table(pa.table({"id": ["a"]}), table)
    refused("must have the columns id, row")


def test_runs_written_by_hand(tmp_path: Path) -> None:
    model = SmoothedClassifier(lambda batch: ["w1" in t for t in batch], Masking(0.5), classes=[False, True])
    certificates = model.certify([text for text, _ in examples(5)])
    records = [record_of(c, id=f"a{n}", row=n, label=True) for n, c in enumerate(certificates, 1)]
    write_run(tmp_path / "run", setting_of(certificates[0]), records)
    found: Run = read_run(tmp_path / "run")
    assert [c.to_dict() for c in found.certificates()] == [c.to_dict() for c in certificates]
    assert all(isinstance(c, Certificate) for c in found.certificates())


@pytest.mark.parametrize(
    "label", ["spam", "1", 1, 0, -3, "", "true", True, None, 0.5, '"spam"', " 1", "{", "[1]", "NaN", "é"]
)
def test_labels_are_plain_texts_from_which_the_type_is_recovered(label: object) -> None:
    text = label_text(label)
    assert label_value(text) == label
    assert type(label_value(text)) is type(label)
    if label in ("spam", "", "{", "é"):
        assert text == label


def test_a_long_run_is_checked_without_looking_for_its_files_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of looks at the folder does not grow with the rows."""
    looks: list[str] = []
    paths = RunTables.paths

    def counted(self: RunTables, name: str = TABLE) -> list[Path]:
        looks.append(name)
        return paths(self, name)

    monkeypatch.setattr(RunTables, "paths", counted)
    counts = []
    for rows in (10, 60):
        folder = certified_in_parts(tmp_path / str(rows), rows, monkeypatch)
        looks.clear()
        read_run(folder)
        counts.append(len(looks))
    assert counts[0] == counts[1] < 10


def certified_in_parts(folder: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(certify_module, "ROWS_PER_PART", 5)
    model, data = make_model(folder / "model"), make_data(folder / "data.jsonl", rows)
    assert run("certify", model, "--data", data, "--out", folder / "run") == 0
    return folder / "run"
