"""The paper's protocol as commands of adaptdel, in order. Each can be run by hand and goes on where it was stopped."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
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
ADAPTIVE = ("adaptdel", "adaptdel+")  # certified by the two lemmas, and by the tight bound from the same votes
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

    def without(self, missing: Container[Path]) -> Step | None:
        """The step where folders are missing: a report on the other runs; None if nothing is left to do."""
        if not any(Path(word) in missing for word in self.arguments):
            return self
        runs = [*takewhile(lambda word: not word.startswith("--"), self.arguments[1:])]
        rest = self.arguments[1 + len(runs) :]
        named = 2 * rest.count("--name")
        names = [rest[place : place + 2] for place in range(0, named, 2)] or [()] * len(runs)
        kept = [number for number, run in enumerate(runs) if Path(run) not in missing]
        if self.arguments[0] != "report" or not kept:
            return None
        words = [word for number in kept for word in names[number]]
        return replace(self, arguments=("report", *(runs[number] for number in kept), *words, *rest[named:]))


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
        make = {"main": self._main_table, "ablation": self._ablation, "attacks": self._attacks}
        steps = [step for part in PARTS if part in parts for name in self.sets for step in make[part](name)]
        return [*{step.command: step for step in steps}.values()]  # a model of two parts is trained once

    def _main_table(self, name: str) -> Iterator[Step]:
        for method in self.methods:
            yield from self._certified(name, method)
            if method in ADAPTIVE:
                run = self.run(name, method)
                yield _step("recertify", run, "--bound", "tight", out=tight(run))
        runs = [self.run(name, method) for method in self.methods]
        names = [word for method in self.methods for word in ("--name", METHODS[method])]
        yield _step("report", *runs, *names, "--title", TITLES[name], "--as-released", out=self.out / "reports" / name)

    def _ablation(self, name: str) -> Iterator[Step]:
        for rate in RATES:
            yield from self._certified(name, "adaptdel", rate)

    def _attacks(self, name: str) -> Iterator[Step]:
        methods = [method for attacked, method in ATTACKS if attacked == name and method in self._attacked_methods]
        for method in methods:
            yield self._train(name, method)
            for recipe in RECIPES:
                yield self._attack(name, method, recipe)
        if methods:
            runs = [self.attack(name, method, recipe) for method in methods for recipe in RECIPES]
            yield _step("report", *runs, "--title", TITLES[name], out=self.out / "reports" / f"{name}-attacks")

    @property
    def _attacked_methods(self) -> Sequence[str]:
        if self.attacker is None:
            return ()
        return self.methods if self.model == "linear" else (*self.methods, "freelb")

    def _train(self, name: str, method: str, rate: int = 90) -> Step:
        k = ABLATION[name, f"{rate}"][0]
        own: dict[str, tuple[object, ...]] = {"adaptdel": ("--rate", rate / 100, "--set", f"k={k:g}")}
        if self.model == "linear":  # which has no epochs: the noises are those of the paper
            own |= {"nosmooth": (), "adaptdel+": ("--rate", 0.9, "--set", "rates=0.7,0.99")}
            options = ("--set", "class_weight=none", "--set", "loss=copies", *own.get(method, ("--rate", 0.9)))
        else:
            options = ("--settings", "paper", "--model", self.model, *own.get(method, ()))
        epochs, seconds, _, _ = COSTS.get((name, method), [None] * 4)
        hours = None if epochs is None or seconds is None else epochs * seconds / HOUR
        arguments = ("train", "--method", method, "--data", data_file(self.data, name, "train"), *options)
        return _step(*arguments, out=self.folder("models", name, method, rate), hours=hours)

    def _certified(self, name: str, method: str, rate: int = 90) -> Iterator[Step]:
        """Train, calibrate AdaptDel+, certify the test set."""
        yield self._train(name, method, rate)
        model = self.folder("models", name, method, rate)
        _, _, hours, milliseconds = COSTS[name, method]
        if method == "adaptdel+":
            trained, model = model, self.folder("calibrated", name, method)
            data = data_file(self.data, name, "train")
            yield _step("calibrate", trained, "--settings", f"paper:{name}", "--data", data, out=model, hours=hours)
        rows, sample = DATA[name][3], self.limit or (YELP_ROWS if name == "yelp" else None)
        hours = (milliseconds or 0) / 1000 * min(sample or rows, rows) / HOUR
        drawn = () if sample is None else ("--sample", sample)
        closed = ("--bound", "tight") if method == "cert-ed" else ()  # at a fixed rate, CERT-ED's closed form
        arguments = ("certify", model, "--settings", "paper", *closed, "--data", data_file(self.data, name, "test"))
        yield _step(*arguments, *drawn, out=self.run(name, method, rate), hours=hours)

    def _attack(self, name: str, method: str, recipe: str) -> Step:
        model, test = self.folder("models", name, method), data_file(self.data, name, "test")
        inputs = () if self.limit is None else ("--inputs", self.limit)
        arguments = ("attack", model, "--settings", "paper", "--recipe", recipe, "--data", test, *inputs)
        return _step(*arguments, out=self.attack(name, method, recipe), hours=None, program=str(self.attacker))

    def folder(self, kind: str, name: str, method: str, rate: int = 90) -> Path:
        """The folder of a model or a run."""
        return self.out / kind / (f"{name}-{method}" + (f"-{rate}" if rate != 90 else ""))

    def run(self, name: str, method: str, rate: int = 90) -> Path:
        """The folder of a certification run."""
        return self.folder("runs", name, method, rate)

    def attack(self, name: str, method: str, recipe: str) -> Path:
        """The folder of a run of attacks."""
        return self.out / "attacks" / f"{name}-{method}-{recipe}"


def tight(run: Path) -> Path:
    """The folder of the radii that the tight bound gives for the votes of a run."""
    return run.with_name(f"{run.name}-tight")


def _step(*arguments: object, out: Path, hours: float | None = 0.0, program: str = "adaptdel") -> Step:
    return Step((*map(str, arguments), "--out", str(out)), out, hours, program)
