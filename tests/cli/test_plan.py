"""``adaptdel plan``, as a user meets it, and the planner behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from adaptdel import Deletion, LengthRate, __version__, certified_radius, clopper_pearson
from adaptdel.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(
        capsys, "plan", "--length", "400", "--rate", "adaptdel:p_min=0.9,k=23", "--votes", "3960/4000"
    )
    assert status == 0
    assert "Certified radius 11: no attacker with up to 11 edits can change the answer" in out
    assert "Largest certifiable radius: 11, with at least 140 unanimous votes" in out
    assert err == ""


@pytest.mark.parametrize("ops", ["edit", "ins", "del", "sub,ins"])
def test_json_holds_what_the_library_says(capsys: pytest.CaptureFixture[str], ops: str) -> None:
    status, out, _ = run(
        capsys,
        "plan",
        "--length",
        "120",
        "--rate",
        "adaptdel:p_min=0.9,k=8",
        "--ops",
        ops,
        "--votes",
        "3000/3200",
        "--json",
    )
    assert status == 0
    created = json.loads(out)
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


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ("ranmask:fraction=0.9", "masks 90% of them"),
        ("nosmooth", "Without noise, no radius above 0 can be certified"),
        ("cert-ed:p=1", "Every radius up to 65536 can be certified"),
    ],
)
def test_every_noise_can_be_planned(capsys: pytest.CaptureFixture[str], rate: str, words: str) -> None:
    status, out, _ = run(capsys, "plan", "--length", "100", "--rate", rate, "--votes", "60/100")
    assert status == 0
    assert words in out


def test_a_plan_for_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text\n" + "\n".join(["one two three four five six seven eight nine ten"] * 9))
    _, shown, _ = run(capsys, "plan", "--data", str(data))
    assert "9 texts of 10 tokens on average; quartiles 10, 10 and 10." in shown
    assert "warning: adaptdel 0.9: the noise keeps 1 of the 10 tokens" in shown
    assert "smoothing certifies at most 1 edit" in shown
    assert "smoothing certifies" not in run(capsys, "plan", "--data", str(data), "--unit", "char")[1]
    values = json.loads(run(capsys, "plan", "--data", str(data), "--json")[1])
    assert values["rates"][0]["name"] == "adaptdel 0.6 (default)"
    single = json.loads(run(capsys, "plan", "--data", str(data), "--rate", "cert-ed:p=0.8", "--json")[1])
    assert [(entry["kept"], entry["radii"]) for entry in single["rates"]] == [([2, 2, 2], [3, 3, 3])]
    assert single["rates"][0]["few"] == 0  # not less than 2 by rounding


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--length", "-4"], "length"),
        (["--rate", "adaptdl:k=3"], "did you mean adaptdel"),
        (["--rate", "adaptdel:k=3"], "adaptdel:p_min=0.9,k=23"),
        (["--rate", "adaptdel:p_min=nan,k=3"], "p_min"),
        (["--rate", "cert-ed:p=0.9/0.8"], "cert-ed:p=0.9"),
        (["--rate", "nosmooth:p=1"], "nosmooth"),
        (["--ops", "swap"], "ops"),
        (["--votes", "9/4"], "trials = 4"),
        (["--votes", "many"], "3960/4000"),
        (["--alpha", "1.5"], "alpha"),
        (["--rate", "ranmask:fraction=0.5", "--ops", "edit"], "ops"),
        (["--data", "x.csv"], "--length"),
    ],
)
def test_nonsense(capsys: pytest.CaptureFixture[str], arguments: list[str], word: str) -> None:
    good = {"--length": "40", "--rate": "cert-ed:p=0.9"}
    rest = [f for pair in good.items() if pair[0] not in arguments for f in pair]
    status, out, err = run(capsys, "plan", *rest, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("adaptdel")
    assert word in err
    assert err.count("\n") == 1


def test_the_installed_command() -> None:
    command = Path(sys.executable).with_name("adaptdel")
    done = subprocess.run([command, "plan", "--length", "9"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == ("adaptdel: --rate or --model must be given with --length: --rate adaptdel:p_min=0.9,k=23\n")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"adaptdel, version {__version__}\n")
