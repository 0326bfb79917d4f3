"""``adaptdel plan``, as a user meets it, and the planner behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptdel import Deletion, LengthRate, certified_radius, clopper_pearson
from tests.run_files import run


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run("plan", *arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ("adaptdel:p_min=0.9,k=23", "Certified radius 11: no attacker with up to 11 edits can change the answer"),
        ("ranmask:fraction=0.9", "masks 90% of them"),
        ("nosmooth", "Without noise, no radius above 0 can be certified"),
        ("cert-ed:p=1", "Every radius up to 65536 can be certified"),
    ],
)
def test_every_noise_can_be_planned(capsys: pytest.CaptureFixture[str], rate: str, words: str) -> None:
    assert words in planned(capsys, "--length", 400, "--rate", rate, "--votes", "3960/4000")


@pytest.mark.parametrize("ops", ["edit", "ins", "del", "sub,ins"])
def test_json_holds_what_the_library_says(capsys: pytest.CaptureFixture[str], ops: str) -> None:
    rate = ("--rate", "adaptdel:p_min=0.9,k=8")
    created = json.loads(planned(capsys, "--length", 120, *rate, "--votes", "3000/3200", "--json", "--threat", ops))
    noise = Deletion(LengthRate(0.9, 8))
    lower = clopper_pearson(3000, 3200, 0.05)[0]
    assert created["votes"] == {
        "successes": 3000,
        "lower": lower,
        "radius": certified_radius(lower, length=120, noise=noise, ops=ops),
    }
    assert created["largest_radius"] == certified_radius(1 - 2.0**-50, length=120, noise=noise, ops=ops)
    for row in created["radii"]:
        assert certified_radius(row["least_probability"], length=120, noise=noise, ops=ops) >= row["radius"]
        needed = row["least_votes"]
        if needed is not None:
            for votes, enough in ((needed, True), (needed - 1, False)):
                p = clopper_pearson(votes, 3200, 0.05)[0]
                assert (certified_radius(p, length=120, noise=noise, ops=ops) >= row["radius"]) == enough
    for votes, enough in ((created["unanimous_votes"], True), (created["unanimous_votes"] - 1, False)):
        p = clopper_pearson(votes, votes, 0.05)[0]
        assert (certified_radius(p, length=120, noise=noise, ops=ops) == created["largest_radius"]) == enough


def test_a_plan_for_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text\n" + "\n".join(["one two three four five six seven eight nine ten"] * 9))
    shown = planned(capsys, "--data", data)
    assert "9 texts of 10 tokens on average; quartiles 10, 10 and 10." in shown
    assert "warning: adaptdel 0.9: the noise keeps 1 of the 10 tokens" in shown
    assert "smoothing certifies at most 1 edit" in shown
    assert "smoothing certifies" not in planned(capsys, "--data", data, "--unit", "char")
    values = json.loads(planned(capsys, "--data", data, "--json"))
    names = [entry["name"] for entry in values["rates"]]
    assert names[0] == "adaptdel 0.6 (default)"
    assert names == sorted(names)
    single = json.loads(planned(capsys, "--data", data, "--rate", "cert-ed:p=0.8", "--json"))
    assert [(entry["kept"], entry["radii"]) for entry in single["rates"]] == [([2, 2, 2], [3, 3, 3])]
    assert single["rates"][0]["few"] == 0  # not less than 2 by rounding


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--length", "-4"], "length"),
        (["--rate", "adaptdl:k=3"], "did you mean adaptdel"),
        (["--rate", "adaptdel:k=3"], "adaptdel:p_min=0.9,k=23"),
        (["--rate", "adaptdel:p_min=nan,k=3"], "p_min"),
        (["--threat", "swap"], "--threat must be"),
        (["--votes", "9/4"], "trials = 4"),
        (["--votes", "many"], "3960/4000"),
        (["--alpha", "1.5"], "alpha"),
        (["--rate", "ranmask:fraction=0.5", "--threat", "edit"], "ops"),
        (["--data", "x.csv"], "--length"),
    ],
)
def test_nonsense(capsys: pytest.CaptureFixture[str], arguments: list[str], word: str) -> None:
    assert run("plan", "--length", 40, "--rate", "cert-ed:p=0.9", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("adaptdel")
    assert word in err
    assert err.count("\n") == 1
