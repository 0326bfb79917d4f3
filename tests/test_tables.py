"""The table writers: alignment, wrapped headings, escaping; and that there are no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptdel.tables import Column, Table, number, percent, text_table

ROOT = Path(__file__).parents[1]


def example() -> Table:
    columns = [
        Column("run", ("run",), number=False),
        Column("certified accuracy at radius 0", ("accuracy",), percent, "max"),
        Column("votes", ("votes",), lambda value: number(value, 0), strong=lambda row: row["votes"] > 2000),
    ]
    rows: list[dict[str, Any]] = [
        {"run": "a|b <c>", "accuracy": 0.5, "votes": 1000.0},
        {"run": "AdaptDel", "accuracy": 0.75, "votes": 2500.0},
        {"run": "none", "accuracy": None, "votes": float("nan")},
    ]
    return Table("main", "A *caption*.", columns, rows)


def test_terminal() -> None:
    assert example().to_terminal().splitlines() == [
        "            certified",
        "          accuracy at",
        "run          radius 0  votes",
        "a|b <c>         50.0%  1,000",
        "AdaptDel        75.0%  2,500",
        "none                –      –",
    ]
    # no control characters, and one line per row
    assert text_table(["name", "x"], [["a\x1b[31mb\nc", "1"]]).to_terminal().splitlines()[1:] == ["a\ufffd[31mb c  1"]


def test_markdown() -> None:
    assert example().to_markdown().splitlines() == [
        r"*A \*caption\*.*",
        "",
        "| run | certified accuracy at radius 0 | votes |",
        "| :--- | ---: | ---: |",
        r"| a\|b &lt;c&gt; | 50.0% | 1,000 |",
        "| AdaptDel | **75.0%** | **2,500** |",
        "| none | – | – |",
    ]
    assert text_table(["a", "b"], [["x", 1]]).to_markdown() == "| a | b |\n| :--- | ---: |\n| x | 1 |\n"


def test_csv_holds_full_values_and_latex_is_escaped() -> None:
    assert example().to_csv().splitlines()[1:] == ["a|b <c>,0.5,1000.0", "AdaptDel,0.75,2500.0", "none,,"]
    assert r"AdaptDel & \textbf{75.0\%} & \textbf{2,500} \\" in example().to_latex()


def test_the_best_value_is_emphasised_unless_all_show_the_same() -> None:
    for values, strong in (((1.001, 1.002, 2.0), [True, True, False]), ((1.001, 1.002), [False, False])):
        table = Table("t", "", [Column("x", ("x",), number, "min")], [{"x": value} for value in values])
        assert [line[0][1] for line in table.cells()] == strong
