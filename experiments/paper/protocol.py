"""The paper's protocol as commands of adaptdel, in order. Each can be run by hand and goes on where it was stopped."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.paper.published import ABLATION, ATTACKS, COSTS, DATA, RECIPES
from experiments.paper.sources import data_file

TITLES = {"yelp": "Yelp", "imdb": "IMDB", "spamassassin": "SpamAssassin", "lun": "LUN"}
METHODS = {
    "nosmooth": "NoSmooth",
    "ranmask": "RanMASK 90%",
    "cert-ed": "CERT-ED 90%",
    "adaptdel": "AdaptDel 90%",
    "adaptdel+": "AdaptDel+",
}
DELETION = ("cert-ed", "adaptdel", "adaptdel+")
RATES = (50, 60, 70, 80, 90, 95)
YELP_ROWS = 10_000  # of its 50,000 test rows
PARTS = ("main", "ablation", "attacks")
HOUR = 3600.0


@dataclass(frozen=True)
class Step:
    """A command.

    Attributes:
        arguments: of the program.
        out: the folder that it writes.
        hours: what the authors' code needed for the same on an A100; None if that is not printed.
        program: adaptdel, or the one of another environment.
    """

    arguments: tuple[str, ...]
    out: Path
    hours: float | None = None
    program: str = "adaptdel"

    @property
    def command(self) -> str:
        """The command as it is typed."""
        return shlex.join([self.program, *self.arguments])


@dataclass(frozen=True)
class Protocol:
    """What the experiments are run on.

    Attributes:
        data: the folder of the data sets.
        out: the folder of models, runs, reports and tables.
        model: the pretrained model, or linear.
        sets: the names of the data sets.
        methods: the rows of the main table.
        limit: the number of test inputs, drawn at random; None for those of the paper.
        attacker: the program adaptdel in an environment that has TextAttack; None leaves the attacks out.
    """

    data: Path
    out: Path
    model: str = "roberta-base"
    sets: Sequence[str] = tuple(TITLES)
    methods: Sequence[str] = tuple(METHODS)
    limit: int | None = None
    attacker: str | None = None

    def steps(self, parts: Sequence[str] = PARTS) -> list[Step]:
        """All commands, those of the main table first."""
        steps: list[Step] = []
        for name in self.sets if "main" in parts else ():
            for method in self.methods:
                steps += self._certified(name, method)
                if method in DELETION:
                    run = self.run(name, method)
                    steps.append(_step("recertify", run, "--bound", "tight", out=tight(run)))
            steps.append(self._report(name))
        for name in self.sets if "ablation" in parts else ():
            for rate in RATES:
                steps += self._certified(name, "adaptdel", rate)
        if "attacks" in parts and self.attacker is not None:
            for name, method in ATTACKS:
                if name in self.sets and (method in self.methods or (method == "freelb" and self.model != "linear")):
                    steps += [self._train(name, method), *(self._attack(name, method, recipe) for recipe in RECIPES)]
        return [*{step.command: step for step in steps}.values()]

    def folder(self, kind: str, name: str, method: str, rate: int = 90) -> Path:
        """The folder of a model, a run or an attack."""
        return self.out / kind / (f"{name}-{method}" + (f"-{rate}" if rate != 90 else ""))

    def run(self, name: str, method: str, rate: int = 90) -> Path:
        """The folder of a certification run."""
        return self.folder("runs", name, method, rate)

    def _certified(self, name: str, method: str, rate: int = 90) -> list[Step]:
        """Train, calibrate AdaptDel+, certify the test set."""
        model, steps = self.folder("models", name, method, rate), [self._train(name, method, rate)]
        _, _, hours, milliseconds = COSTS[name, method]
        if method == "adaptdel+":
            trained, model = model, self.folder("calibrated", name, method)
            data = data_file(self.data, name, "train")
            step = _step("calibrate", trained, "--settings", f"paper:{name}", "--data", data, out=model, hours=hours)
            steps.append(step)
        rows, sample = int(DATA[(name,)][3] or 0), self.limit or (YELP_ROWS if name == "yelp" else None)
        drawn = () if sample is None else ("--sample", sample)
        hours = (milliseconds or 0) / 1000 * min(sample or rows, rows) / HOUR
        data = data_file(self.data, name, "test")
        run = self.run(name, method, rate)
        return [*steps, _step("certify", model, "--settings", "paper", "--data", data, *drawn, out=run, hours=hours)]

    def _train(self, name: str, method: str, rate: int = 90) -> Step:
        k = ABLATION[name, f"{rate}"][0]
        own: dict[str, tuple[object, ...]] = {"adaptdel": ("--rate", rate / 100, "--set", f"k={k:g}")}
        if self.model == "linear":  # which has no epochs: the noises are those of the paper
            own |= {"nosmooth": (), "adaptdel+": ("--rate", 0.9, "--set", "rates=0.7,0.99")}
            options = ("--class-weight", "none", "--set", "loss=copies", *own.get(method, ("--rate", 0.9)))
        else:
            options = ("--settings", "paper", "--model", self.model, *own.get(method, ()))
        epochs, seconds, _, _ = COSTS.get((name, method), [None] * 4)
        return _step(
            *("train", "--method", method, "--data", data_file(self.data, name, "train"), *options),
            out=self.folder("models", name, method, rate),
            hours=None if epochs is None or seconds is None else epochs * seconds / HOUR,
        )

    def _report(self, name: str) -> Step:
        runs = [self.run(name, method) for method in self.methods]
        names = [word for method in self.methods for word in ("--name", METHODS[method])]
        return _step("report", *runs, *names, "--title", TITLES[name], out=self.out / "reports" / name)

    def _attack(self, name: str, method: str, recipe: str) -> Step:
        model, out = self.folder("models", name, method), self.attack(name, method, recipe)
        inputs = () if self.limit is None else ("--inputs", self.limit)
        arguments = ("attack", model, "--recipe", recipe, "--data", data_file(self.data, name, "test"), *inputs)
        return _step(*arguments, out=out, hours=None, program=str(self.attacker))

    def attack(self, name: str, method: str, recipe: str) -> Path:
        """The folder of a run of attacks."""
        return self.out / "attacks" / f"{name}-{method}-{recipe}"


def tight(run: Path) -> Path:
    """The folder of the radii that the tight bound gives for the votes of a run."""
    return run.with_name(f"{run.name}-tight")


def _step(*arguments: object, out: Path, hours: float | None = 0.0, program: str = "adaptdel") -> Step:
    return Step((*map(str, arguments), "--out", str(out)), out, hours, program)
