"""The tables of experiments/attacks.md are those of experiments/results/attacks.json."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.attacks import tables

DOCS = Path(__file__).parents[2] / "experiments"


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    content = json.loads((DOCS / "results" / "attacks.json").read_text(encoding="utf-8"))
    page = (DOCS / "attacks.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"<!-- table: (\w+) -->\n(.*?)\n<!-- /table -->", page, re.DOTALL))
    written = tables(content)
    assert set(shown) == set(written) == {"gap", "lengths", "overview", "recipes", "audits"}
    for name, table in written.items():
        has_rows = len(table.splitlines()) > 2
        assert shown[name] == (table if has_rows else "Not measured yet."), name
