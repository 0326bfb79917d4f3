"""Files and command lines that are damaged or hostile end in an answer or in one sentence, never in anything else."""

from __future__ import annotations

import copy
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import betaincinv

from adaptdel import Deletion, FixedRate, LengthRate, Masking
from adaptdel.certification.certificate import Certificate, digest_of
from adaptdel.certification.verify import verify
from adaptdel.certification.votes import Votes, VotesPlan
from adaptdel.classifiers import LinearClassifier
from adaptdel.core.rigorous import rigorous_radius
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.report.entries import read_entries
from adaptdel.runs.columns import schema_of
from adaptdel.runs.storage import read_manifest
from adaptdel.training.jobs import TrainingJob, train_job
from tests.fuzzing import (
    Failure,
    changed,
    changed_bytes,
    fuzz,
    json_bytes,
    one_sentence,
    refused,
)
from tests.models.test_smoothed import WORDS, by_words, first_word, texts
from tests.run_files import examples, make_data, run

WORK = 10_000  # steps that are allowed for one certificate, as many as the longest of those here needs
IN_BINS = ("--objective", "paper", *(part for name in ("n_select=8", "n_estimate=20", "bins=0,40", "tol=20")
                                      for part in ("--set", name)))  # fmt: skip


class Workspace:
    """A folder with a small valid file of every kind, made once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def new(self, name: str) -> Path:
        """A path at which there is nothing."""
        path = self.root / "work" / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        return path

    def copy(self, source: Path, name: str) -> Path:
        return Path(shutil.copytree(source, self.new(name)))

    @cached_property
    def certificates(self) -> list[dict[str, Any]]:
        many = {"base": first_word, "classes": [*WORDS, ""]}
        kinds: list[dict[str, Any]] = [
            {}, {"sampling": "fixed"}, {"noise": Masking(0.7)}, {"threshold": 0.3}, {"bound": "paper"}, many,
            {"noise": Deletion(FixedRate(0.9)), "ops": ("del",)},
        ]  # fmt: skip
        found = []
        for kind in kinds:
            given = {"classes": ["neg", "pos"], "n_estimate": 300, "noise": Deletion(LengthRate(0.7, 6)), **kind}
            model = SmoothedClassifier(given.pop("base", by_words), n_select=64, **given)
            found += [json.loads(certificate.to_json()) for certificate in model.certify(texts(4, seed=4))]
        return found

    @cached_property
    def model(self) -> Path:
        """A linear model that was trained and calibrated from files."""
        folder = self.root / "model"
        rows = [{"text": text, "label": label} for text, label in examples(120, seed=1)]
        data = self.root / "train.jsonl"
        data.write_text("\n".join(json.dumps(row) for row in rows if row["text"]))
        settings = {"method": "adaptdel+", "bits": 6, "copies": 2, "iterations": 5, "validation": 0.4}
        train_job(TrainingJob.from_dict({"data": str(data), "out": str(folder), **settings}), progress=False)
        assert run("calibrate", folder, "--data", data, "--out", folder, *IN_BINS) == 0
        settings_file = folder / "adaptdel.json"
        values = json.loads(settings_file.read_text())
        values["plan"] |= {"n_select": 20, "n_estimate": 50}
        settings_file.write_text(json.dumps(values))
        return folder

    @cached_property
    def vocabulary(self) -> Path:
        """A linear model of three classes, not trained from files."""
        folder = self.root / "vocabulary"
        rows, labels = zip(*examples(60, seed=3, labels=("a", "b", "c")), strict=True)
        base = LinearClassifier(bits=6)
        model = SmoothedClassifier(base, Masking(0.5), n_select=20, n_estimate=50, copies=1)
        model.fit(list(rows), list(labels)).save(folder)
        return folder

    @cached_property
    def data(self) -> Path:
        return make_data(self.root / "data.jsonl", count=6)

    @cached_property
    def run(self) -> Path:
        assert run("certify", self.model, "--data", self.data, "--limit", 3, "--out", self.root / "run") == 0
        return self.root / "run"


def certificate(space: Workspace, edits: list[int]) -> None:
    """`verify` on a changed certificate, mostly with a digest that fits: it accepts no radius that is not proven."""
    rng = random.Random(edits[0])
    values = rng.choice(space.certificates)
    values = forged(values, rng) if rng.random() < 0.5 else changed(values, edits)
    if isinstance(values, dict) and rng.random() < 0.9:
        values["digest"] = digest_of(values)
    wrong = verify(values, work=WORK)
    if not isinstance(wrong, list) or not all(isinstance(sentence, str) and "\n" not in sentence for sentence in wrong):
        raise Failure(f"not sentences: {wrong!r}")
    radius = -1 if wrong else values["derived"]["radius"]
    if radius >= 0 and radius > (proven := proven_radius(Certificate.from_dict(values))):
        raise Failure(f"the radius {radius} is accepted, and {proven} is proven: {values}")


def forged(values: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A certificate by hands that know what hangs together: a few moves that may each make it prove too much."""
    values = copy.deepcopy(values)
    classes, derived, plan, evidence = (values[name] for name in ("classes", "derived", "plan", "evidence"))
    rates = [{"kind": "fixed", "p": p} for p in (0.0, 0.5, 0.999999, 1 - 2**-32, 1.0)]
    rates += [{"kind": "length", "p_min": 0.0, "k": k} for k in (0, 1, 10**9)]
    for _ in range(rng.choice([1, 1, 2, 3])):
        move = rng.randrange(12)
        if move == 0 and len(classes) > 1:
            classes[rng.randrange(len(classes))] = rng.choice(classes)
        elif move == 1:
            derived["radius"] += rng.choice([1, 2, 10, 10**6])
        elif move == 2:
            derived["p1"] = rng.choice([1.0, 0.999999, 1 - (1 - derived["p1"]) / 2, math.nextafter(derived["p1"], 2)])
            derived["p1"] = min(1.0, derived["p1"])
        elif move == 3:
            derived["p2"] = rng.choice([0.0, 1e-300, derived["p2"] / 2, math.nextafter(derived["p2"], -1)])
        elif move == 4:
            factor = rng.choice([0.01, 2, 10])
            evidence["look_alphas"] = [alpha * factor for alpha in evidence["look_alphas"]]
            derived["alpha"] = derived["alpha"] * factor
            plan["alpha"] = rng.choice([plan["alpha"], plan["alpha"] * factor])
        elif move == 5:
            values["length"] = rng.choice([0, 1, 10**5, 10**9, 5 * 10**12, 2**53, values["length"] * 2])
        elif move == 6:
            plan["noise"] = {"kind": "deletion", "rate": rng.choice(rates)}
        elif move == 7:
            evidence["votes"] = [[sum(row) if label == values["label"] else 0 for label in classes]
                                 for row in evidence["votes"]]  # fmt: skip
        elif move in (8, 9):
            plan["threshold"] = rng.choice([None, 0.0, 0.5, 1.0, 0.999])
        elif move == 10:
            plan["bound"] = rng.choice(["tight", "paper"])
        else:
            plan["threat"]["ops"] = rng.choice([["del"], ["ins"], ["sub"], ["del", "ins", "sub"]])
    return values


def proven_radius(found: Certificate) -> int:
    """The radius in ball arithmetic of bounds that are found again from the votes, a little too large."""
    if len({json.dumps(label) for label in found.classes}) < len(found.classes):
        return -1
    slack, plan = 1e-9, cast(VotesPlan, found.plan)
    votes = cast(Votes, found.evidence)
    noise = plan.given(votes.tokens).noise
    shape: dict[str, Any] = {"length": found.length, "noise": noise, "ops": found.ops, "bound": plan.bound}
    if votes.looks is None:
        low, high = votes.bounds(plan)
    else:
        low, high = 0.0, 1.0
        for counts, alpha in zip(votes.votes, votes.looks.alphas, strict=False):
            level, total, won = alpha / (1 if votes.classes == 2 else 2), sum(counts), counts[found.answer]
            rival = max(count for place, count in enumerate(counts) if place != found.answer)
            low = max(low, float(betaincinv(won, total - won + 1, level)) if won else 0.0)
            rest = float(betaincinv(total - rival, rival + 1, level)) if total > rival else 0.0
            high = min(high, 1 - rest)
        high = min(high, 1 - low)
    low, high = min(1.0, low + slack), max(0.0, high - slack)
    if plan.threshold is not None:
        p = low if found.answer == 1 else 1 - low
        inside = p > plan.threshold if found.answer == 1 else p <= plan.threshold
        return int(rigorous_radius(p, threshold=plan.threshold, **shape)) if inside else -1
    return int(rigorous_radius(low, None if votes.rests_on_p1 else high, **shape))


def run_folder(space: Workspace, edits: list[int]) -> None:
    """A finished run with a damaged manifest or table: verified, derived again, compared."""
    rng = random.Random(edits[0])
    folder = space.copy(space.run, "run")
    name = rng.choice(["manifest.json", "certificates.parquet"])
    kind = rng.randrange(4)
    if kind == 0:
        (folder / name).write_bytes(changed_bytes((folder / name).read_bytes(), edits))
    elif kind == 1 and rng.random() < 0.3:
        (folder / name).unlink()
    elif name == "manifest.json":
        (folder / name).write_bytes(json_bytes(changed(json.loads((folder / name).read_text()), edits), edits))
    else:
        rows = changed(pq.read_table(folder / name).to_pylist(), edits)
        pq.write_table(odd_table(rows, schema_of(read_manifest(space.run).kind), rng), folder / name)
    chance = rng.random()
    if chance < 0.5:
        refused(["verify", folder, "--work", WORK], folder)
    elif chance < 0.7:
        out = space.new("recertified")
        if refused(["recertify", folder, "--out", out, "--alpha", 0.1, "--work", WORK], folder) and out.exists():
            raise Failure("a run that could not be derived again was written")
        if leftovers := [path.name for path in out.parent.iterdir() if path.name.startswith(".")]:
            raise Failure(f"left behind: {leftovers}")
    elif chance < 0.75:
        limit = rng.choice([[], ["--limit", 4]])
        refused(["certify", space.model, "--data", space.data, "--out", folder, *limit], folder.name)
    else:
        try:
            for entry in read_entries([folder]):
                _ = entry.measures.to_dict(), entry.quartiles
        except Exception as error:
            one_sentence(error, folder)


def odd_table(rows: Any, schema: pa.Schema, rng: random.Random) -> pa.Table:
    """Rows as a table of the schema, without the values that do not fit."""
    rows = [row if isinstance(row, dict) else {} for row in rows] if isinstance(rows, list) else []
    names = [name for name in schema.names if rng.random() < 0.995]
    columns = [pa.array([fitting(row.get(name), schema.field(name).type) for row in rows]) for name in names]
    columns = [column.cast(schema.field(name).type) for column, name in zip(columns, names, strict=True)]
    table = pa.Table.from_arrays(columns, names=names)
    return table.replace_schema_metadata(schema.metadata) if rng.random() < 0.95 else table


def fitting(value: Any, kind: pa.DataType) -> Any:
    """A value of a column, or None if it is of another type."""
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


def model_folder(space: Workspace, edits: list[int]) -> None:
    """A damaged model is refused with the name of the file, or certifies."""
    rng = random.Random(edits[0])
    folder = space.copy(rng.choice([space.model, space.vocabulary]), "model")
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".safetensors"))
    path = rng.choice(files)
    kind = rng.randrange(10)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.unlink()
        path.mkdir()
    elif path.suffix == ".safetensors":
        path.write_bytes(damaged_tensors(path.read_bytes(), edits, rng))
    elif kind == 2:
        path.write_bytes(changed_bytes(path.read_bytes(), edits))
    else:
        path.write_bytes(json_bytes(changed(json.loads(path.read_text()), edits), edits))
    try:
        model = SmoothedClassifier.load(folder)
    except Exception as error:
        one_sentence(error, folder)
        return
    with suppress(ValueError):
        model.certify(["w1 w2 w150", ""])


def damaged_tensors(data: bytes, edits: list[int], rng: random.Random) -> bytes:
    if rng.random() < 0.5 or len(data) < 8:
        return changed_bytes(data, edits)
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(changed(json.loads(data[8 : 8 + size]), edits)).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


Target = Callable[[Workspace, list[int]], None]
TARGETS: dict[Target, tuple[int, int]] = {  # cases in the quick suite and in the slow one
    certificate: (60, 20_000),
    run_folder: (30, 4_000),
    model_folder: (40, 5_000),
}
PART = 2_500  # cases of a test of the slow suite, so that they are shared out among processes


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("fuzz")
        (root / "here").mkdir()
        patch.chdir(root / "here")
        yield Workspace(root)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_a_few_cases(space: Workspace, target: Target) -> None:
    fuzz(target.__name__, lambda edits: target(space, edits), TARGETS[target][0], seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "part"),
    [(target, part) for target, (_, cases) in TARGETS.items() for part in range(0, cases, PART)],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_many_cases(space: Workspace, target: Target, part: int) -> None:
    cases = min(PART, TARGETS[target][1] - part)
    fuzz(target.__name__, lambda edits: target(space, edits), cases, seed=1 + part)
