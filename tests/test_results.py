"""The page of results: made of the JSON files beside it, and of nothing else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from benchmarks.paper.experiments import Clock
from benchmarks.paper.figures import draw_pareto, front
from benchmarks.paper.pages import write_page

DOCS = Path(__file__).parents[1] / "docs"


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
    section = page.split("### SpamAssassin, linear")[1]
    line = next(line for line in section.splitlines() if line.startswith("| AdaptDel 90%"))
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[2] == f"{100 * values['adaptdel']['clean_accuracy']:.2f}"
    assert cells[4].startswith(f"{values['adaptdel']['mean_radius']:.2f} ± ")


def test_the_front_leaves_out_what_is_beaten(tmp_path: Path) -> None:
    points = [
        {"kind": "AdaptDel", "setting": str(number), "clean_accuracy": accuracy, "mean_radius": radius}
        for number, (accuracy, radius) in enumerate([(0.97, 5.0), (0.95, 9.0), (0.96, 4.0), (0.95, 8.0), (0.9, 9.0)])
    ]
    assert [point["setting"] for point in front(points)] == ["0", "1"]
    draw_pareto(points, "spamassassin", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_a_clock_counts_and_leaves_no_trace() -> None:
    class Slow:
        def work(self, value: int) -> int:
            return value + 1

    one, clock, before = Slow(), Clock(), Slow.work
    with clock.on(one, "work"):
        assert one.work(1) == 2
    counted = clock.seconds
    with Clock().on(Slow, "work"):
        assert one.work(2) == 3
    assert counted > 0
    assert clock.seconds == counted
    assert Slow.work is before
    assert "work" not in vars(one)
