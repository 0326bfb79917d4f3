"""The figures that are drawn into axes of matplotlib."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.report.entries import read_entries
from adaptdel.report.figures import draw
from adaptdel.runs.storage import Run
from tests.run_files import examples

pytest.importorskip("matplotlib").use("agg")


def certified(out: Path, **settings: object) -> Run:
    texts, labels = map(list, zip(*examples(60), strict=True))
    model = ad.SmoothedClassifier(n_estimate=200, progress=False, **settings).fit(texts, labels)  # type: ignore[arg-type]
    return ad.evaluate(model, texts, labels=labels, out=out, progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return certified(tmp_path_factory.mktemp("figures") / "run")


def test_sizes_are_on_a_linear_axis_from_1_beside_a_run_without_radii(run: Run, tmp_path: Path) -> None:
    plain = certified(tmp_path / "plain", noise=ad.NoNoise())
    entries = read_entries([run.folder, plain.folder])
    figures = {name: figure for name, _, _, figure in draw(entries)}
    for name in ("certified-cardinality", "quartiles"):
        assert {axes.get_xscale() for axes in figures[name].axes} == {"linear"}
    lengths = next(axes for axes in figures["quartiles"].axes if axes.get_xlabel() == "length, tokens")
    dashed = [line.get_ydata()[0] for line in lengths.get_lines() if line.get_linestyle() == "--"]
    assert dashed == [0.25, 0.5, 0.75]
    curve = lengths.get_lines()[0].get_xdata()
    assert curve[[0, 100, 200]] == pytest.approx(np.quantile(entries[0].outcomes.length, [0, 0.5, 1]))


def test_radii_are_cut_as_in_the_released_figures(run: Run) -> None:
    entry = read_entries([run.folder])[0]
    inputs = entry.outcomes
    huge = replace(inputs, radius=np.where(np.arange(len(inputs)) < 3, 99 + np.arange(len(inputs)), 1))
    entry = replace(entry, parts=(replace(entry.parts[0], outcomes=huge),))
    shown = entry.as_released().outcomes
    assert len(inputs) - 3 <= len(shown) < len(inputs)
    assert max(shown.radius - shown.length) <= 0
    name, _, caption, figure = draw([entry], as_released=True)[0]
    assert (name, "cut at the length" in caption) == ("certified-radius", True)
    assert figure.axes[0].get_xscale() == "linear"


def test_certified_accuracy_is_drawn_into_axes(run: Run) -> None:
    axes = ad.plot_certified_accuracy(run)
    line = axes.get_lines()[0]
    correct = run.table["correct"].to_numpy(zero_copy_only=False)
    for radius in (1, 2):
        fraction = np.mean(correct & (run.table["radius"].to_numpy() >= radius))
        assert np.asarray(line.get_ydata())[np.searchsorted(line.get_xdata(), radius)] == pytest.approx(fraction)
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
