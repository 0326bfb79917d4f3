"""The page of results: its tables and pictures are those of the files beside it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from experiments.paper.__main__ import main
from experiments.paper.experiments import Clock
from experiments.paper.figures import draw_pareto, front
from experiments.paper.pages import write_page
from experiments.paper.study import finished

DOCS = Path(__file__).parents[1] / "experiments"


def test_the_page_shows_what_the_files_hold(tmp_path: Path) -> None:
    shutil.copytree(DOCS / "results", tmp_path / "results")
    write_page(tmp_path / "results")
    assert (tmp_path / "results.md").read_text(encoding="utf-8") == (DOCS / "results.md").read_text(encoding="utf-8")


def test_every_picture_of_the_page_is_there() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (DOCS / "results.md").read_text(encoding="utf-8"))
    assert pictures
    assert [name for name in pictures if not (DOCS / name).is_file()] == []


def test_a_figure_in_the_page_is_the_one_in_its_file() -> None:
    """Out of the file by hand, so that a fault in the page's own code is seen."""
    values = json.loads((DOCS / "results" / "main-spamassassin-linear.json").read_text(encoding="utf-8"))["values"]
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    section = page.split("### Main table: SpamAssassin, linear")[1]
    line = next(line for line in section.splitlines() if line.startswith("| AdaptDel 90%"))
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[2] == f"{100 * values['adaptdel']['clean_accuracy']:.2f}"
    certified = values["adaptdel"]["certified"] + values["adaptdel"]["certified_zero"]
    assert cells[4] == f"{100 * certified / values['adaptdel']['inputs']:.2f}"
    assert cells[5].startswith(f"{values['adaptdel']['mean_radius']:.2f} ± ")


def test_the_front_leaves_out_what_is_beaten(tmp_path: Path) -> None:
    points = [
        {"kind": "AdaptDel", "setting": str(number), "clean_accuracy": accuracy, "mean_radius": radius}
        for number, (accuracy, radius) in enumerate([(0.97, 5.0), (0.95, 9.0), (0.96, 4.0), (0.95, 8.0), (0.9, 9.0)])
    ]
    assert [point["setting"] for point in front(points)] == ["0", "1"]
    draw_pareto(points, "spamassassin", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_constant_answers_are_not_on_the_front() -> None:
    points = [
        {"clean_accuracy": 0.9, "mean_radius": 5.0, "most_frequent_answer": 0.8},
        {"clean_accuracy": 0.75, "mean_radius": 40.0, "most_frequent_answer": 1.0},
    ]
    assert front(points) == points[:1]


@pytest.mark.parametrize(
    "wrong", [["--sets", "imdb,mnist"], ["--bases", "bert"], ["--parts", "main,tables"], ["--rows", "all"]]
)
def test_unknown_names_are_refused_at_once(
    wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(
        "sys.argv", ["paper", "--data", str(tmp_path), "--out", str(out), "--results", str(out), *wrong]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert f"{wrong[0]} must be among" in capsys.readouterr().err
    assert not out.exists()


def test_a_clock_counts_and_leaves_no_trace() -> None:
    class Slow:
        def work(self, value: int) -> int:
            return value + 1

    each, clock, earlier = Slow(), Clock(), Slow.work
    with clock.on(each, "work"):
        assert each.work(1) == 2
    counted = clock.seconds
    with Clock().on(Slow, "work"):
        assert each.work(2) == 3
    assert counted > 0
    assert clock.seconds == counted
    assert Slow.work is earlier
    assert "work" not in vars(each)


@pytest.mark.parametrize(("ended", "expected"), [(None, False), ("2026-01-01T00:00:00+00:00", True)])
def test_a_run_that_was_stopped_is_not_finished(ended: str | None, expected: bool, tmp_path: Path) -> None:
    assert not finished(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"finished": ended, "totals": None}), encoding="utf-8")
    assert finished(tmp_path) is expected
