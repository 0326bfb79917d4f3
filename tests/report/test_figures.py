"""The figures that are drawn into axes of matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.report.entries import read_entries
from adaptdel.report.figures import draw
from adaptdel.report.words import summary
from adaptdel.runs.storage import Run
from tests.run_files import examples

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    texts, labels = zip(*examples(60), strict=True)
    model = SmoothedClassifier(n_estimate=200, progress=False).fit(list(texts), list(labels))
    out = tmp_path_factory.mktemp("figures") / "run"
    return ad.evaluate(model, list(texts), labels=list(labels), out=out, progress=False)


@pytest.fixture(autouse=True)
def _no_window() -> None:
    import matplotlib as mpl

    mpl.use("agg")


def test_captions_and_summary_name_the_operations(tmp_path: Path) -> None:
    texts, labels = zip(*examples(60), strict=True)
    model = SmoothedClassifier(n_estimate=200, ops="del", threshold=0.4, progress=False).fit(list(texts), list(labels))
    ad.evaluate(model, list(texts), labels=list(labels), out=tmp_path / "run", progress=False)
    entries = read_entries([tmp_path / "run"])
    captions = {name: caption for name, _, caption, _ in draw(entries)}
    assert all("only deletes)" in captions[name] for name in ("certified-radius", "detection", "classes"))
    assert summary(entries[0]).count("if an attacker deletes 1 word") == 2


def test_certified_accuracy_is_drawn_into_axes(run: Run) -> None:
    axes = ad.plot_certified_accuracy(run)
    line = axes.get_lines()[0]
    correct = run.table["correct"].to_numpy(zero_copy_only=False)
    for radius in (1, 2):
        share = np.mean(correct & (run.table["radius"].to_numpy() >= radius))
        assert np.asarray(line.get_ydata())[np.searchsorted(line.get_xdata(), radius)] == pytest.approx(share)
    assert ad.plot_certified_accuracy(run.folder, axes=axes) is axes
    assert len(axes.get_lines()) == 2


def test_radius_against_length(run: Run) -> None:
    line = ad.plot_radius_against_length(run).get_lines()[0]
    lengths = run.table["length"].to_numpy()
    assert min(lengths) <= min(line.get_xdata()) <= max(line.get_xdata()) <= max(lengths)
    correct = run.table["correct"].to_numpy(zero_copy_only=False)
    radii = np.where(correct, np.maximum(run.table["radius"].to_numpy(), 0), 0)
    assert min(radii) <= min(line.get_ydata()) <= np.mean(radii) <= max(line.get_ydata()) <= max(radii)
    with pytest.raises(ValueError, match="run"):
        ad.plot_radius_against_length()


def test_a_run_in_a_notebook(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    again = ad.read_run(str(run.folder))
    assert again.to_arrow().equals(run.table)
    assert repr(again).startswith(f"<Run {str(Path(run.folder))!r}: inputs 60, clean accuracy ")
    assert "<th>inputs</th><td>60</td>" in again._repr_html_()
    unfinished = Run(run.folder, run.manifest | {"finished": None})
    assert "unfinished" in repr(unfinished)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas"):
        again.to_pandas()
