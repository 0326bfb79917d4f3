"""Calibrated folders: which rows are used, what is stored, the command and the figure."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adaptdel.calibration import Calibration, plot_calibration
from adaptdel.calibration.calibration import certify_sample
from adaptdel.calibration.folders import CHECKPOINT, calibrate_folder
from adaptdel.calibration.rows import choose_rows
from adaptdel.cli.calibrate import calibrate_command, read_bins
from adaptdel.core.rates import InterpolatedRate
from adaptdel.models.model_files import CALIBRATION as CALIBRATION_FILE
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.data import Examples as FileExamples
from adaptdel.text.data import held_out, read_examples
from adaptdel.text.units import Words
from tests.calibration.documents import (
    ARGUMENTS,
    DATA,
    Stop,
    contents,
    data_file,
    folder_settings,
    saved,
    whole,
)

# Rows, folders and the command


def rows(on: str, *, share: float | None = 0.4, digest: str = "d", bins: Any = (0, 40, 80), count: int = 20) -> Any:
    examples = FileExamples(DATA[0], list(DATA[1]), list(range(240)), "d")
    training = {"validation": share, "seed": 7, "data": {"digest": digest}}
    return choose_rows(examples, training, on, split=Words().split, bins=bins, min_count=count)


def test_rows_that_were_held_out() -> None:
    out = [text for text in DATA[0] if held_out(text, 0.4, 7)]
    assert 60 < len(out) < 130
    assert rows("held-out").texts == out == rows("auto").texts
    assert set(rows("train").texts) == set(DATA[0]) - set(out)
    assert rows("all").texts == DATA[0]
    assert dict(zip(DATA[0], DATA[1], strict=True)) | dict(zip(rows("auto").texts, rows("auto").labels)) == dict(  # noqa: B905
        zip(*DATA, strict=True)
    )
    assert rows("auto").note == f"calibrating on {len(out)} rows: those held out in training"


def test_rows_where_too_few_were_held_out() -> None:
    few = "rows were held out, too few for the bins: all rows are used"
    options: list[dict[str, Any]] = [{}, {"bins": "auto"}, {"share": 0.02}, {"share": 1e-9}]  # the last: none at all
    for created in (rows("auto", count=60, **each) for each in options):
        assert created.texts == DATA[0]
        assert created.note.endswith(few)
    assert rows("auto", bins="auto", count=10).note.endswith("held out in training")
    other = rows("auto", digest="e")
    assert (other.texts, other.note) == (DATA[0], "not the file that the model was trained on: all rows are used")
    assert (
        rows("auto", share=None).note
        == "no rows of the file were held out: rows that the model was trained on are used"
    )
    with pytest.raises(ValueError, match="on must be 'all' or 'auto' for a model whose training held out no rows"):
        rows("held-out", share=None)
    with pytest.raises(ValueError, match="on must leave at least one row to calibrate on, got 'held-out'"):
        rows("held-out", share=1e-9)


def test_a_folder_is_calibrated_in_place_or_copied_and_goes_on(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    earlier = contents(model)
    copied = calibrate_folder(model, examples, folder_settings(), out=tmp_path / "deep" / "copy", progress=False)
    assert contents(model) == earlier
    assert copied.calibration == whole()
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["copy"]

    def progress(done: int, total: int) -> None:
        if done > 24 * 5:
            raise Stop

    with pytest.raises(Stop):
        calibrate_folder(model, examples, folder_settings(), progress=progress)
    assert {k: v for k, v in contents(model).items() if not k.startswith(CHECKPOINT)} == earlier  # nothing half-written
    done = calibrate_folder(model, examples, folder_settings(), progress=False)
    assert (done.calibration, done.already_done, done.folder) == (whole(), False, model)
    for folder in (model, copied.folder):
        loaded = SmoothedClassifier.load(folder)
        assert loaded.noise_ == whole().noise
        assert Calibration.from_dict(loaded.calibration_) == whole()
        assert (folder / "calibration.png").read_bytes()[:4] == b"\x89PNG"
        assert not list(folder.glob(f"{CHECKPOINT}*"))
    again = calibrate_folder(model, examples, folder_settings(), progress=lambda done, total: pytest.fail("recomputed"))
    assert (again.calibration, again.already_done) == (whole(), True)


def test_what_a_model_was_calibrated_by_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    changed = folder_settings() | {"interpolate": True, "monotone": False}
    fresh = calibrate_folder(model, examples, changed, out=tmp_path / "fresh", progress=False)
    calibrate_folder(model, examples, folder_settings(), progress=False)
    asked: list[float] = []

    def counted(certifier: Any, prepared: Any, labels: Any, keep: float, **others: Any) -> Any:
        asked.append(keep)
        return certify_sample(certifier, prepared, labels, keep, **others)

    monkeypatch.setattr("adaptdel.calibration.calibration.certify_sample", counted)
    again = calibrate_folder(model, examples, changed, out=tmp_path / "again", progress=False)
    assert (again.calibration, asked) == (fresh.calibration, [])
    other = changed | {"n_estimate": 65}
    calibrate_folder(model, examples, other, out=tmp_path / "other", progress=False)  # measured in another way
    assert asked


def without_phases(values: dict[str, Any]) -> dict[str, Any]:
    """What was written while calibrations drew from the streams of certification."""
    return values | {"settings": {k: v for k, v in values["settings"].items() if k != "phases"}}


def test_measurements_on_the_streams_of_certification_are_not_taken_over(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    calibrate_folder(model, examples, folder_settings(), progress=False)
    stored = model / CALIBRATION_FILE
    stored.write_text(json.dumps(without_phases(json.loads(stored.read_text(encoding="utf-8")))), encoding="utf-8")
    reports: list[int] = []
    again = calibrate_folder(model, examples, folder_settings(), progress=lambda done, total: reports.append(done))
    assert not again.already_done
    assert again.calibration == whole()
    assert len(reports) > 24  # certificate by certificate: nothing was remembered


def test_a_copy_replaces_nothing_unasked(tmp_path: Path) -> None:
    model, examples = saved(tmp_path / "model"), read_examples(str(data_file(tmp_path)))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="holds something that is not a model"):
        calibrate_folder(model, examples, folder_settings(), out=tmp_path / "other", overwrite=True)
    out = saved(tmp_path / "out")
    with pytest.raises(ValueError, match=r"holds another model: choose another folder for --out, or --overwrite"):
        calibrate_folder(model, examples, folder_settings(), out=out)
    calibrate_folder(model, examples, folder_settings(), out=out, overwrite=True, progress=False)
    assert SmoothedClassifier.load(out).noise_ == whole().noise


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    model = saved(tmp_path / "model")
    calibrate_folder(model, read_examples(str(data_file(tmp_path))), folder_settings(), progress=False)
    assert SmoothedClassifier.load(model).noise_ == whole().noise
    assert not (model / "calibration.png").exists()


def test_the_command(tmp_path: Path) -> None:
    model, data = saved(tmp_path / "model"), data_file(tmp_path)
    arguments = [str(model), "--in-place", "--data", str(data), *ARGUMENTS, "--monotone"]
    arguments += ["--objective", "mean", "--min-accuracy", "0.9"]
    ran = CliRunner().invoke(calibrate_command, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    *heading, first, second, third, _, optimistic, _, where, noise, following = ran.stdout.splitlines()
    assert optimistic.startswith(
        "Measured on the examples on which the kept lengths were chosen: these figures are opt"
    )
    words = {word for line in heading for word in line.split()}
    assert words == {"tokens", "kept", "radius", "certified", "accuracy", "at", "this", "clean", "mean", "examples"}
    assert [line.split("  ")[0].strip() for line in (first, second, third)] == ["0 to 40", "40 to 80", "from 80"]
    assert len({len(line) for line in (heading[-1], first, second, third)}) == 1
    assert where == f"{model}: calibrated"
    assert following.startswith("next: adaptdel certify ")
    assert noise == f"noise: {whole().noise!r}"
    assert "## Calibration" in (model / "README.md").read_text(encoding="utf-8")
    again = CliRunner().invoke(calibrate_command, [*arguments, "--json"], catch_exceptions=False)
    stored = json.loads(again.stdout)
    assert stored["finished_before"] is True
    assert Calibration.from_dict(stored) == whole()


def test_the_command_shows_warnings(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    arguments = [str(model), "--in-place", "--data", str(data_file(tmp_path)), *ARGUMENTS, "--objective", "paper"]
    ran = CliRunner().invoke(calibrate_command, [*arguments, "--threshold", "1"], catch_exceptions=False)
    warned = [line for line in ran.stderr.splitlines() if line.startswith("warning: the bin of ")]
    assert [line[:38] for line in warned[:2]] == [
        "warning: the bin of 0 to 40 tokens: 4.",
        "warning: the bin of 40 to 80 tokens: 1",
    ]
    card = (model / "README.md").read_text(encoding="utf-8")
    assert all(line.removeprefix("warning: ") in card for line in warned)


def test_bins_on_the_command_line() -> None:
    assert read_bins("auto") == "auto"
    assert read_bins("0, 137,230") == [0, 137, 230]
    with pytest.raises(ValueError) as error:
        read_bins("0,b")
    assert str(error.value) == "bins must be auto, or numbers such as 0,137,230,324, got '0,b'"


def test_the_figure_shows_every_bin(tmp_path: Path) -> None:
    plots = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    for name, each in [("a", whole()), ("b", replace(whole(), rate=InterpolatedRate([20, 60, 120], [5, 9, 12])))]:
        with pytest.MonkeyPatch.context() as patch:
            kept = plots.Figure.savefig

            def savefig(self: Any, *args: Any, kept: Any = kept, **options: Any) -> None:
                drawn.append(self)
                kept(self, *args, **options)

            patch.setattr(plots.Figure, "savefig", savefig)
            plot_calibration(each, tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").stat().st_size > 5000
    for figure, parts in zip(drawn, (3, 1), strict=True):
        left, right = figure.axes
        lines = [line for line in right.lines if len(line.get_xdata()) > 3]
        assert len(lines) == parts  # a binned rate jumps at its edges, an interpolated one nowhere
        assert "length" in left.get_xlabel()
    (dots,) = [line for line in drawn[0].axes[1].lines if line.get_marker() == "o"]
    assert list(dots.get_xdata()) == [20, 60, 120]
    assert list(dots.get_ydata()) == [bin.keep for bin in whole().bins]
