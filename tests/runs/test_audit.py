"""What verify must not let pass: claims, fields and files that nobody vouches for."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel import Deletion, FixedRate, LengthRate, Masking, NoNoise
from adaptdel.certification.certificate import Certificate, check_classes, digest, label_key
from adaptdel.certification.verify import verify
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import Noise
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.parts import TABLE
from adaptdel.runs.records import CERTIFICATES, Totals, certificate_of, record_of, values_of
from adaptdel.runs.storage import MANIFEST, read_run, write_run
from tests.models.test_smoothed import WORDS, by_words, first_word, texts
from tests.run_files import examples, make_data, make_model, run, write_rows

Values = dict[str, Any]


def certificates(count: int = 8, **settings: Any) -> list[Certificate]:
    defaults: Values = {"classes": ["neg", "pos"], "n_estimate": 600, "noise": Deletion(LengthRate(0.7, 6))}
    settings = defaults | settings
    return SmoothedClassifier(settings.pop("base", by_words), **settings).certify(texts(count, seed=4))


@pytest.fixture(scope="module")
def sampled() -> Values:
    """A certificate of two classes with a radius."""
    return next(c.to_dict() for c in certificates() if c.exact is None and c.radius > 0)


def forged(values: Values, change: Callable[[Values], None]) -> Values:
    """A forger who knows how the digest is made."""
    values = deepcopy(values)
    change(values)
    values["digest"] = digest(values)
    return values


# Certificates


def test_classes_that_repeat_a_label() -> None:
    whole = next(c for c in certificates(base=first_word, classes=[*WORDS, ""], sampling="fixed") if c.exact is None)
    assert verify(whole.to_dict()) == []
    split = replace(whole, classes=(*whole.classes[:-1], whole.classes[0])).to_dict()
    [sentence] = verify(split)
    assert sentence == 'classes must differ from each other, got the label "good" more than once'
    with pytest.raises(ValueError, match="classes must differ"):
        Certificate.from_dict(split)


def test_labels_are_compared_as_json_is() -> None:
    assert check_classes([1, True, 1.0, "1", None, [1]]) == [1, True, 1.0, "1", None, [1]]
    assert label_key((1, 2)) == label_key([1, 2])
    for classes in ([1, 1], [True, True], ["a", "b", "a"], [None, None], []):
        with pytest.raises(ValueError, match="classes must"):
            check_classes(classes)
    with pytest.raises(ValueError, match="a label must be"):
        check_classes([float("nan"), 1])
    certificate = next(c for c in certificates() if c.exact is None)
    sampled = replace(certificate, classes=(0, 1), label=certificate.answer).to_dict()
    assert verify(sampled) == []
    other = {0: False, 1: True}[sampled["label"]]
    assert verify(forged(sampled, lambda values: values.update(label=other)))
    assert verify(forged(sampled, lambda values: values.update(label=float(other))))


def test_the_second_probability_of_two_classes(sampled: Values) -> None:
    [sentence] = verify(forged(sampled, lambda values: values["derived"].update(p2=1e-6)))
    assert sentence == "the upper bound 1e-06 does not follow from the votes"


@pytest.mark.parametrize("where", [(), ("derived",), ("looks",), ("noise",), ("noise", "rate"), ("unit",)])
@pytest.mark.parametrize("value", [1, None, "checked by experts"])
def test_unknown_fields(sampled: Values, where: tuple[str, ...], value: Any) -> None:
    def add(values: Values) -> None:
        for name in where:
            values = values[name]
        values["note"] = value

    [sentence] = verify(forged(sampled, add))
    assert "note" in sentence


@pytest.mark.parametrize("value", [None, True, 7, -1.5, float("nan"), "x", [], [None], {}, {"kind": 3}], ids=repr)
def test_fields_of_a_wrong_type(sampled: Values, value: Any) -> None:
    fine = {"exact": None, "threshold": None, "unit": None, "seed": 7, "length": 7, "model_hash": "x", "known": True}
    for name in sampled:
        is_fine = (name in fine and fine[name] is value) or (name == "seed" and value is None)  # a secret seed
        if name != "digest" and not is_fine:
            wrong = verify(forged(sampled, lambda values, name=name: values.update({name: value})))  # type: ignore[misc]
            assert len(wrong) == 1, name
            assert "\n" not in wrong[0]
    for name in sampled["derived"]:
        wrong = verify(forged(sampled, lambda values, name=name: values["derived"].update({name: value})))  # type: ignore[misc]
        assert len(wrong) == 1, name


def test_fields_that_are_missing(sampled: Values) -> None:
    for name in sampled:
        values = deepcopy(sampled)
        del values[name]
        assert verify(values) == [f"a certificate must have the field {name!r}, which is missing"]
    for part in ("derived", "looks"):
        for name in sampled[part]:
            wrong = verify(forged(sampled, lambda values, part=part, name=name: values[part].pop(name)))  # type: ignore[misc]
            assert wrong == [f"{part} must have the field {name!r}, which is missing"]


@pytest.mark.parametrize("alpha", [float("nan"), -0.1, 1.0, 5, None, "0.05", True])
def test_alpha_out_of_range(sampled: Values, alpha: Any) -> None:
    assert "alpha must be in" in verify(forged(sampled, lambda values: values["derived"].update(alpha=alpha)))[0]
    assert verify(
        forged(sampled, lambda values: values["looks"].update(alphas=[alpha] * len(values["looks"]["sizes"])))
    )


@pytest.mark.parametrize("unit", [5, [], "word", {}, {"kind": "nonsense"}, {"kind": "chunk", "size": True}])
def test_units_of_a_wrong_type(sampled: Values, unit: Any) -> None:
    assert len(verify(forged(sampled, lambda values: values.update(unit=unit)))) == 1


@pytest.mark.parametrize(
    "noise", [Deletion(FixedRate(1.0)), NoNoise(), Deletion(FixedRate(0.0)), Masking(1.0), Masking(0.0)], ids=repr
)
def test_equal_copies_vote_alike(noise: Noise) -> None:
    """The noise leaves nothing to chance: a split vote was invented."""
    ops = "sub" if isinstance(noise, Masking) else "ins"
    certificate = certificates(3, noise=noise, sampling="fixed", ops=ops, n_estimate=200)[-1]
    assert certificate.length > 0
    assert verify(replace(certificate, ops=("sub",)).to_dict()) == []
    counts = list(certificate.votes[0])
    counts[certificate.answer] -= 1
    counts[1 - certificate.answer] += 1
    split = replace(certificate, votes=(tuple(counts),), ops=("sub",))
    [sentence] = verify(split.to_dict())
    assert sentence.startswith("the votes must be unanimous")


def test_an_empty_input_votes_alike() -> None:
    [certificate] = SmoothedClassifier(
        by_words, Deletion(FixedRate(0.5)), classes=["neg", "pos"], sampling="fixed", n_estimate=200
    ).certify([""])
    assert verify(certificate.to_dict()) == []
    counts = list(certificate.votes[0])
    counts[certificate.answer], counts[1 - certificate.answer] = 199, 1
    assert verify(replace(certificate, votes=(tuple(counts),)).to_dict())


ABSURD: list[tuple[Noise, Values]] = [
    (Deletion(LengthRate(0.7, 6)), {}),
    (Deletion(LengthRate(0.7, 6)), {"bound": "paper"}),
    (Deletion(FixedRate(0.999999999)), {"ops": ("del",)}),
    (Deletion(LengthRate(0.5, 2.4e12)), {}),
    (Masking(0.999999999), {"ops": ("sub",)}),
    (Deletion(LengthRate(0.7, 6)), {"threshold": 0.3}),
]


@pytest.mark.parametrize(("noise", "others"), ABSURD)
@pytest.mark.parametrize("length", [5 * 10**12])
def test_absurd_lengths_are_given_up(sampled: Values, noise: Noise, others: Values, length: int) -> None:
    def change(values: Values) -> None:
        values.update(length=length, noise=noise.to_dict(), **others)

    wrong = verify(forged(sampled, change), work=2 * 10**6)
    assert len(wrong) == 1
    assert f"not checked: to derive it again for {length} tokens" in wrong[0] or "radius" in wrong[0]


def test_absurd_votes_are_given_up(sampled: Values) -> None:
    votes = 2**39

    def change(values: Values) -> None:
        values["looks"] = {"sizes": [2 * votes], "alphas": [values["derived"]["alpha"]]}
        values["votes"] = [[votes, votes]]
        values["derived"].update(p1=0.49999, p2=0.51)

    [sentence] = verify(forged(sampled, change))
    assert sentence.startswith("not checked")
    assert "--work" in sentence


def test_long_texts_are_not_absurd() -> None:
    """Ten thousand tokens are checked, under the paper's bound too."""
    looks = Looks.fixed(4000, 0.05)
    certificate = replace(
        certificates(1)[0], length=10_000, selection=(0, 100), answer=1, label="pos", looks=looks,
        votes=((2, 3998),), exact=None, noise=Deletion(LengthRate(0.9, 23)),
    )  # fmt: skip
    assert certificate.radius > 100
    assert verify(certificate.to_dict()) == []
    assert verify(replace(certificate, length=1000, bound="paper").to_dict()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 1, "format": 1}', "the field 'format' is repeated"),
        ('{"format": NaN}', "a number must be finite, got NaN"),
        ('{"format": -Infinity}', "a number must be finite, got -Infinity"),
        ('{"format": 1e999}', "a number must be finite, got 1e999"),
        ('{"format": ' + "9" * 5000 + "}", "a whole number must have at most 64 digits, got 5000"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 40 + "]" * 40, "nested too deeply"),
        ('{"format":', "not JSON: Expecting value (line 1, column 11)"),
    ],
)
@pytest.mark.parametrize("shape", ["{}", "{}\n{{}}", "[\n{}\n]"])
def test_json_that_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str, shape: str
) -> None:
    file = tmp_path / "certificates.json"
    file.write_text(shape.format(text))
    assert run("verify", file) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(file) in error
    assert words in error or "not JSON" in words


def test_a_large_alpha_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "certificates.json"
    for alpha, said in ((0.05, False), (0.2, True)):
        file.write_text(json.dumps([c.to_dict() for c in certificates(alpha=alpha)]))
        assert run("verify", file) == 0
        assert ("note: alpha is up to 0.2, more than the usual 0.05" in capsys.readouterr().err) == said
    assert run("verify", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["largest_alpha"] == pytest.approx(0.2)


# Runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a file with rows that cannot be used, and runs of both kinds of sampling."""
    folder = tmp_path_factory.mktemp("runs")
    make_model(folder / "model")
    rows: list[Any] = [{"text": text, "label": label} for text, label in examples(20, 2)]
    write_rows(folder / "test.jsonl", [*rows, {"text": 7}, *rows[:2], {"text": "w1 w2"}])
    for name, options in {"adaptive": [], "fixed": ["--sampling", "fixed"]}.items():
        out = folder / name
        assert run("certify", folder / "model", "--data", folder / "test.jsonl", "--out", out, *options) == 1
    return folder


def rewrite(
    source: Path,
    out: Path,
    change_row: Callable[[Values], None] | None = None,
    change: Callable[[Values], None] = lambda manifest: None,
    *,
    which: Callable[[Values], bool] = lambda row: True,
    keep: Callable[[Values], bool] = lambda row: True,
) -> Path:
    """A run that a forger changed, with digests and totals that fit."""
    found = read_run(source)
    rows, manifest = [row for row in found.records() if keep(row)], deepcopy(found.manifest)
    if change_row is not None:
        row = next(row for row in rows if row["problem"] is None and row["exact"] is None and which(row))
        change_row(row)
        row["digest"] = digest(values_of(certificate_of(manifest, row), row))
    totals = Totals.of(manifest)
    for row in rows:
        totals.add(row)
    manifest["totals"] = totals.to_dict()
    change(manifest)
    write_run(out, manifest, rows)
    return out


def test_a_run_that_is_written_again_holds(tmp_path: Path, folder: Path) -> None:
    for name in ("adaptive", "fixed"):
        assert run("verify", rewrite(folder / name, tmp_path / name)) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean_radius", 99.0),
        ("accuracy", 1.0),
        ("calls", 1),
        ("labelled", 3),
        ("correct", 3),
        ("abstained", 3),
        ("inputs", 3),
        ("problems", 0),
        ("problems", True),
        ("mean_radius", None),
        ("seconds", 1.0),
    ],
)
def test_forged_totals(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], name: str, value: Any) -> None:
    out = rewrite(
        folder / "adaptive", tmp_path / "run", change=lambda manifest: manifest["totals"].update({name: value})
    )
    assert run("verify", out) == 1
    printed = capsys.readouterr().out
    assert "the run: does not hold: the " in printed
    assert name in printed or "the manifest counts" in printed
    assert "23 of 23 certificates hold" in printed
    assert run("certify", folder / "model", "--data", folder / "test.jsonl", "--out", out) == 2
    assert "the totals in manifest.json are not those of the rows" in capsys.readouterr().err


@pytest.mark.parametrize("keep", [lambda row: row["correct"] is not False, lambda row: row["row"] > 1])
def test_rows_that_were_dropped(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], keep: Callable[[Values], bool]
) -> None:
    """Without its mistakes a run looks better, and all that is left holds."""
    out = rewrite(folder / "adaptive", tmp_path / "run", keep=keep)
    assert run("verify", out) == 1
    assert "is missing from a run that is finished according to its manifest" in capsys.readouterr().out


def test_lost_totals(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = rewrite(folder / "adaptive", tmp_path / "a", change=lambda manifest: manifest.update(totals=None))
    assert run("verify", out) == 1
    assert "the manifest lacks the totals" in capsys.readouterr().out


def one_look(row: Values) -> None:
    """All of alpha for the look that was taken last."""
    row.update(look_sizes=[row["look_sizes"][len(row["votes"]) - 1]], votes=row["votes"][-1:], look_alphas=[0.05])
    _derive(row)


def first_look(row: Values) -> None:
    """Nearly all of alpha for the first look."""
    last = len(row["look_alphas"]) - 1
    row["look_alphas"] = [0.049, *[0.001 / last] * last]
    _derive(row)


def longer_selection(row: Values) -> None:
    row["selection"][json.loads(row["answer"])] += 1
    row["calls"] += 1


def shorter_selection(row: Values) -> None:
    answer = json.loads(row["answer"])
    row["calls"] += 32 - sum(row["selection"])
    row["selection"] = [16, 16]
    assert row["selection"][answer] == 16


def _derive(row: Values) -> None:
    """Fill in what follows from forged votes."""
    certificate = certificate_of(FORGERS_MANIFEST, row)
    row.update(record_of(certificate, id=row["id"], row=row["row"], label=json.loads(row["truth"])))


FORGERS_MANIFEST: Values = {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (one_look, "looks were planned after "),
        (first_look, "the levels of the looks are not those that were planned for alpha 0.05"),
        (longer_selection, "the selection took 33 votes, which is not planned for 100"),
        (shorter_selection, "the selection ended after 32 of 100 votes without a clear lead"),
    ],
)
def test_looks_that_were_not_planned(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Values], None], words: str
) -> None:
    FORGERS_MANIFEST.update(read_run(folder / "adaptive").manifest)
    out = rewrite(
        folder / "adaptive",
        tmp_path / "run",
        change,
        which=lambda row: (
            len(row["look_sizes"]) > 2
            and row["truth"] is not None
            and sum(row["selection"]) == 32
            and row["length"] > 20
        ),
    )
    assert run("verify", out) == 1
    assert words in capsys.readouterr().out


def test_other_numbers_of_votes_than_stated(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("votes", [100, 401]), ("sampling", "adaptive"), ("alpha", 0.06)):
        out = rewrite(folder / "fixed", tmp_path / name, change=lambda manifest: manifest.update({name: value}))  # noqa: B023
        assert run("verify", out) == 1
        assert "does not hold" in capsys.readouterr().out


def test_recertified_runs_follow_the_plan_of_their_source(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = [folder / "adaptive", *(tmp_path / name for name in "abc")]
    steps: list[list[object]] = [["--alpha", 0.01, "--ops", "ins"], ["--ops", "sub"], ["--alpha", 0.3]]
    for number, options in enumerate(steps):
        assert run("recertify", chain[number], "--out", chain[number + 1], *options) == 0
    for out in chain:
        assert run("verify", out) == 0
    planned = read_run(chain[-1]).manifest["source"]["planned"]
    assert planned == {"alpha": 0.05, "ops": ["del", "ins", "sub"]}
    capsys.readouterr()

    def other_plan(manifest: Values) -> None:
        manifest["source"]["planned"] = {"alpha": 0.0001, "ops": ["ins"]}

    assert run("verify", rewrite(chain[-1], tmp_path / "other", change=other_plan)) == 1
    assert "looks were planned after " in capsys.readouterr().out

    def no_plan(manifest: Values) -> None:  # as former versions wrote it
        del manifest["source"]["planned"]

    assert run("verify", rewrite(chain[-1], tmp_path / "former", change=no_plan)) == 0
    assert "the manifest does not state their plan" in capsys.readouterr().err
    FORGERS_MANIFEST.update(read_run(chain[-1]).manifest)
    free = rewrite(
        chain[-1], tmp_path / "free", one_look, no_plan,
        which=lambda row: len(row["look_sizes"]) > 2 and len(row["votes"]) < len(row["look_sizes"]),
    )  # fmt: skip
    assert run("verify", free) == 1


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("note", "checked by experts", 1),
        ("alpha", float("nan"), 2),
        ("alpha", 5, 2),
        ("alpha", None, 2),
        ("alpha", 0, 1),
        ("votes", None, 2),
        ("votes", [100, "400"], 2),
        ("votes", [100, 2**70], 2),
        ("sampling", "both", 2),
        ("classes", [0, 0], 2),
        ("classes", [0], 2),
        ("classes", None, 2),
        ("noise", {"kind": "deletion"}, 2),
        ("noise", None, 2),
        ("ops", ["del", "del"], 2),
        ("ops", "edit", 2),
        ("unit", 5, 2),
        ("unit", {"kind": "word", "note": 1}, 2),
        ("threshold", 1.5, 2),
        ("seed", "0", 2),
        ("bound", "best", 2),
        ("limit", 0, 2),
        ("limit", 5, 1),
        ("vocab_size", 10, 1),
        ("finished", True, 2),
        ("finished", "yesterday", 2),
        ("started", 5, 2),
        ("data", [], 2),
        ("data", {"path": "test.jsonl"}, 1),
        ("model", "linear", 2),
        ("model", {}, 1),
        ("sessions", {}, 2),
        ("sessions", [5], 2),
        ("totals", [], 2),
        ("source", {"path": "somewhere"}, 2),
        ("model_hash", None, 2),
    ],
)
def test_forged_manifests(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], name: str, value: Any, status: int
) -> None:
    out = rewrite(folder / "adaptive", tmp_path / "run", change=lambda manifest: manifest.update({name: value}))
    assert run("verify", out) == status
    captured = capsys.readouterr()
    if status == 2:
        assert captured.err.count("\n") == 1
        assert f"{out / MANIFEST}: not the manifest of a run: " in captured.err
        assert run("recertify", out, "--out", tmp_path / "new") == 2
    else:
        assert "the run: does not hold: " in captured.out


def test_lost_fields_of_a_manifest(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in read_run(folder / "adaptive").manifest:
        out = rewrite(folder / "adaptive", tmp_path / name)
        values = json.loads((out / MANIFEST).read_text())
        del values[name]
        (out / MANIFEST).write_text(json.dumps(values))
        assert run("verify", out) in (1, 2)
        captured = capsys.readouterr()
        assert name in captured.out + captured.err


@pytest.mark.parametrize("text", ["[" * 50_000, '{"format": 1, "format": 1}', "\ud800", "3", "null", '{"format": "1"}'])
def test_manifests_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode("utf-8", "surrogatepass"))
    assert run("verify", tmp_path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{tmp_path / MANIFEST}: not the manifest of a run: " in error


ILL: list[tuple[str, Any]] = [
    *((name, None) for name in CERTIFICATES.names if name not in ("truth", "correct", "exact", "problem", "row", "id")),
    ("votes", [[1, None]]),
    ("votes", [None]),
    ("votes", []),
    ("selection", [None, 3]),
    ("selection", [3]),
    ("look_sizes", [None]),
    ("look_alphas", [None]),
    ("look_alphas", [float("nan")]),
    ("look_alphas", [5.0]),
    ("exact", [[None]]),
    ("exact", [None]),
    ("answer", "nonsense"),
    ("answer", "[[["),
    ("length", -1),
    ("input_hash", "x"),
    ("length", 5 * 10**12),
    ("votes", [[-1, 1]]),
]


@pytest.mark.parametrize(("name", "value"), ILL)
def test_ill_typed_rows(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], name: str, value: Any
) -> None:
    found = read_run(folder / "adaptive")
    rows = list(found.records())
    row = next(row for row in rows if row["problem"] is None and row["exact"] is None and row["radius"] > 0)
    row[name] = value
    write_run(tmp_path / "run", found.manifest, rows)
    assert run("verify", tmp_path / "run", "--work", 10**6) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"row {row['row']} (id {row['id']}): does not hold: ")
    assert "22 of 23 certificates hold" in out
    status = run("recertify", tmp_path / "run", "--out", tmp_path / "new", "--work", 10**6)
    assert status == 2
    error = capsys.readouterr().err
    assert error.startswith(f"adaptdel: {tmp_path / 'run' / TABLE}, row {row['row']}: ")
    assert error.count("\n") == 1


def test_rows_that_do_not_go_together(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_run(folder / "adaptive")

    def check(words: str, change: Callable[[list[Values]], None]) -> None:
        rows = deepcopy(list(found.records()))
        change(rows)
        write_run(tmp_path / "run", found.manifest, rows)
        assert run("verify", tmp_path / "run") == 1
        assert words in capsys.readouterr().out

    def other_votes(rows: list[Values]) -> None:  # of the same text
        first = next(row for row in rows if row["input_hash"] == rows[21]["input_hash"])
        assert first["row"] != rows[21]["row"]
        certificate = replace(certificate_of(found.manifest, rows[21]), input_hash=rows[2]["input_hash"])
        rows[21].update(record_of(certificate, id=rows[21]["id"], row=22, label=json.loads(rows[21]["truth"])))

    def no_hash(row: Values) -> None:
        row["input_hash"] = ""
        row["digest"] = digest(values_of(certificate_of(found.manifest, row), row))

    check("another row of the same input has other votes", other_votes)
    check("a row with a problem must have no radius", lambda rows: rows[20].update(radius=3))
    check("is not one of the classes", lambda rows: rows[0].update(truth='"spam"', correct=False))
    check("rows must be numbered from 1 on", lambda rows: rows[0].update(row=0))
    check("rows must be numbered from 1 on", lambda rows: rows[0].update(row=None))
    check("input_hash must not be empty", lambda rows: no_hash(rows[3]))
    check("radius must be a whole number", lambda rows: rows[3].update(radius=2**62))
    check("times must be seconds", lambda rows: rows[0].update(seconds=-1.0))
    check(r"(id '\x1b[2J60 of 60 hold\n')", lambda rows: rows[0].update(id="\x1b[2J60 of 60 hold\n", radius=999))


def test_tables_that_are_none(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(words: str) -> None:
        for command in (["verify", out], ["recertify", out, "--out", tmp_path / "new"]):
            assert run(*command) == 2
            error = capsys.readouterr().err
            assert words in error
            assert error.count("\n") == 1

    out = rewrite(folder / "adaptive", tmp_path / "run")
    times, table = out / "times.parquet", out / TABLE
    good = times.read_bytes()
    times.write_bytes(good[: len(good) // 2])
    refused(f"{times}: not a Parquet file, or a damaged one: ")
    pq.write_table(pq.read_table(folder / "adaptive" / "times.parquet").slice(1), times)
    refused(f"{times}: must have the rows of {TABLE}")
    times.unlink()
    assert run("verify", out) == 0
    rows = pq.read_table(table)
    pq.write_table(rows.set_column(15, "radius", rows["radius"].cast(pa.string())), table)
    refused(f"{table}: the column radius must be of type int64, got string: ")
    good = (folder / "adaptive" / TABLE).read_bytes()
    table.write_bytes(good[:200] + bytes(100) + good[300:])
    capsys.readouterr()
    refused(f"{table}: not a Parquet file, or a damaged one: ")


def test_recertify_gives_up_absurd_lengths(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_run(folder / "fixed")
    rows = list(found.records())
    rows[3]["length"] = 5 * 10**12
    write_run(tmp_path / "run", found.manifest, rows)
    assert run("recertify", tmp_path / "run", "--out", tmp_path / "new", "--alpha", 0.01, "--work", 10**6) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"adaptdel: {tmp_path / 'run' / TABLE}, row 4: deriving the radius for 5000000000000 tokens"
    )
    assert error.endswith("raise the limit with --work\n")


def test_runs_of_the_honest(tmp_path: Path) -> None:
    """All kinds of runs hold as they are written."""
    data = make_data(tmp_path / "test.jsonl", 12)
    noises: list[Noise] = [NoNoise(), Masking(0.7), Deletion(FixedRate(0.9)), Deletion(FixedRate(0.0)), Masking(1.0)]
    for number, noise in enumerate(noises):
        model = make_model(tmp_path / f"model{number}", noise)
        for sampling in ("adaptive", "fixed"):
            out = tmp_path / f"run{number}{sampling}"
            assert run("certify", model, "--data", data, "--out", out, "--sampling", sampling, "--limit", 7) == 0
            assert run("verify", out) == 0
            assert run("certify", model, "--data", data, "--out", out, "--sampling", sampling) == 0
            assert run("verify", out) == 0
    labels = ("a", "b", "c")
    rows = [{"text": text, "label": label} for text, label in examples(12, 3, labels)]
    data = write_rows(tmp_path / "many.jsonl", rows)
    model = make_model(tmp_path / "many", labels=labels)
    assert run("certify", model, "--data", data, "--out", tmp_path / "out", "--alpha", 0.2) == 0
    assert run("verify", tmp_path / "out") == 0
    model = make_model(tmp_path / "threshold", threshold=0.3)
    assert run("certify", model, "--data", make_data(tmp_path / "two.jsonl", 12), "--out", tmp_path / "two") == 0
    assert run("verify", tmp_path / "two") == 0
