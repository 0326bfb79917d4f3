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


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "plan.png"
    status, out, err = run(
        capsys,
        "plan",
        "--length",
        "400",
        "--rate",
        "adaptdel:p_min=0.9,k=23",
        "--votes",
        "3960/4000",
        "--plot",
        str(figure),
    )
    assert status == 0
    assert "Certified radius 11: no attacker with up to 11 edits can change the answer" in out
    assert "Largest certifiable radius: 11, with at least 140 unanimous votes" in out
    assert err == f"wrote {figure}\n"
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [figure]


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
        ("fixed:p=1", "Every radius up to 65536 can be certified"),
        ("adaptdel+:edges=0/137,keep=4/9", "deletes 96% of them"),
        ("interpolated:lengths=50/150,keep=4/9", "Largest certifiable radius"),
    ],
)
def test_every_noise_can_be_planned(capsys: pytest.CaptureFixture[str], rate: str, words: str) -> None:
    status, out, _ = run(capsys, "plan", "--length", "100", "--rate", rate, "--votes", "60/100")
    assert status == 0
    assert words in out


def test_votes_that_settle_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "plan", "--length", "100", "--rate", "fixed:p=0.9", "--votes", "51/100")
    assert status == 0
    assert "the votes do not determine the answer, so the classifier abstains" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--length", "-4"], "adaptdel: length must be an integer of at least 0, got -4"),
        (["--length", "x"], "adaptdel plan: Invalid value for '--length': 'x' is not a valid integer."),
        (["--rate", "adaptdl:k=3"], "adaptdel: rate must begin with one of adaptdel, adaptdel+, interpolated"),
        (["--rate", "adaptdel:k=3"], "adaptdel: rate adaptdel needs p_min=..., got 'adaptdel:k=3'"),
        (["--rate", "adaptdel:p_min=0.9,k=-3"], "adaptdel: k must be a finite number of at least 0, got -3.0"),
        (["--rate", "adaptdel:p_min=high,k=3"], "adaptdel: p_min must be a number, got 'high'"),
        (["--rate", "adaptdel:p_min=nan,k=3"], "adaptdel: p_min must be a probability in [0, 1], got nan"),
        (["--rate", "adaptdel:p=0.9,k=3"], "adaptdel: rate adaptdel takes p_min=..., k=..., p_max=..., got 'p=0.9'"),
        (["--rate", "fixed:p=0.9,p=0.8"], "adaptdel: rate cert-ed takes p once, got it twice"),
        (["--rate", "nosmooth:p=1"], "adaptdel: rate nosmooth takes nothing after its name, got 'p=1'"),
        (["--rate", "binned:edges=0/9/3,keep=1/1/1"], "adaptdel: edges must increase strictly, got [0.0, 9.0, 3.0]"),
        (["--ops", "swap"], 'adaptdel: ops must be "edit" or some of "del", "ins", "sub", got \'swap\''),
        (["--votes", "9/4"], "adaptdel: successes must be at most trials = 4, got 9"),
        (["--votes", "many"], "adaptdel: votes must be two integers such as 3960/4000, got 'many'"),
        (["--votes", "0/0"], "adaptdel: votes must be an integer of at least 1, got 0"),
        (["--alpha", "1.5"], "adaptdel: alpha must be in (0, 1), got 1.5"),
        (["--rate", "ranmask:fraction=0.5", "--ops", "edit"], "adaptdel: ops must be ['sub'] under Masking"),
        (["--plot", "plan.gif"], "adaptdel: a figure's name must end in .png, .svg, .pdf, got 'plan.gif'"),
        (["--plot", "no/such/plan.png"], "adaptdel: a figure needs an existing folder, got 'no/such'"),
        (["--loud"], "adaptdel plan: No such option '--loud'."),
    ],
)
def test_nonsense(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    good = {"--length": "40", "--rate": "fixed:p=0.9"}
    rest = [f for pair in good.items() if pair[0] not in arguments for f in pair]
    status, out, err = run(capsys, "plan", *rest, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_the_installed_command() -> None:
    command = Path(sys.executable).with_name("adaptdel")
    done = subprocess.run([command, "plan", "--length", "9"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == ("adaptdel: --rate or --model must be given with --length: --rate adaptdel:p_min=0.9,k=23\n")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"adaptdel, version {__version__}\n")
