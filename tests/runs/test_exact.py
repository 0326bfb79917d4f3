"""Runs of exact certificates: tables, workers, resuming after a kill, recertify, verify, evaluate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.models.model_files import load_model
from adaptdel.report.entries import read_entries
from adaptdel.report.words import summary
from adaptdel.runs.certify import CertificationJob, certify_data
from adaptdel.runs.engine import EngineSettings
from adaptdel.runs.inputs import Source
from adaptdel.runs.manifest import check_manifest
from adaptdel.runs.records import record_of
from adaptdel.runs.rederive import recertify, verify_run, verify_with_model
from adaptdel.runs.storage import Run, read_run, read_status, write_table
from adaptdel.settings import AdditiveTrainingSettings
from adaptdel.training.protection import protect
from tests.calibration.documents import documents
from tests.run_files import rewrite
from tests.training.test_training import run as command

SETTINGS = AdditiveTrainingSettings(levels=4, iterations=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of three classes, a file, and its run."""
    folder = tmp_path_factory.mktemp("exact")
    ad.AdditiveClassifier(settings=SETTINGS, progress=False).fit(*documents(150, 1, 3)).save(folder / "model")
    texts, labels = documents(90, 2, 3)
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    rows[7] = {"text": "no label"}
    rows[9] = {"text": None, "label": 1}
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("certify", folder / "model", "--data", folder / "data.jsonl", "--out", folder / "run") == 1
    return folder


def job(folder: Path, out: Path, **fields: Any) -> CertificationJob:
    return CertificationJob(folder / "model", Source(str(folder / "data.jsonl")), out, **fields)


def table(run: Path) -> bytes:
    return (run / "certificates.parquet").read_bytes()


def errors(run: Run) -> list[str]:
    return [sentence for _, wrong in verify_run(run) for sentence in wrong]


def test_a_row_holds_the_integers_and_what_follows_from_them(folder: Path) -> None:
    run, model = read_run(folder / "run"), load_model(folder / "model")
    texts = [json.loads(line).get("text") for line in (folder / "data.jsonl").read_text().splitlines()]
    records = list(run.records())
    assert [record["row"] for record in records if record["problem"] is not None] == [10]
    for record, certificate in run.certified(records):
        (expected,) = model.certify([texts[record["row"] - 1]])
        assert certificate.to_dict() == expected.to_dict()
        assert (record["radius"], record["character_radius"]) == (expected.radius, expected.character_radius)
        assert record["votes"] is record["selection"] is record["p1"] is record["rate"] is None
        assert (record["calls"], record["abstained"]) == (0, False)
    assert run.manifest["alpha"] == 0
    assert run.manifest["totals"]["mean_character_radius"] > 0
    assert errors(run) == []
    assert read_status(folder / "run")["done"] == 90


def test_workers_and_an_interrupted_run_give_the_same_table(folder: Path, tmp_path: Path) -> None:
    certify_data(job(folder, tmp_path / "workers", engine=EngineSettings("local", 2)), progress=False)
    assert table(tmp_path / "workers") == table(folder / "run")

    class Killed(Exception):
        pass

    def killed(done: int, total: int) -> None:
        if done == 40:
            raise Killed

    with pytest.raises(Killed):
        certify_data(job(folder, tmp_path / "resumed"), progress=killed)
    unfinished = read_run(tmp_path / "resumed")
    assert not unfinished.finished
    assert errors(unfinished) == []
    certify_data(job(folder, tmp_path / "resumed"), progress=False)
    assert table(tmp_path / "resumed") == table(folder / "run")


def test_evaluate_takes_a_model_in_memory(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder / "model")
    run = ad.evaluate(model, folder / "data.jsonl", out=tmp_path / "run", progress=False)
    assert table(run.folder) == table(folder / "run")


def test_recertify_gives_what_certify_gives(folder: Path, tmp_path: Path) -> None:
    recertify(folder / "run", tmp_path / "re", ops="del,sub")
    certify_data(job(folder, tmp_path / "direct", settings={"ops": "del,sub"}), progress=False)
    assert table(tmp_path / "re") == table(tmp_path / "direct") != table(folder / "run")
    assert errors(read_run(tmp_path / "re")) == []
    for option in ({"alpha": 0.01}, {"bound": "paper"}):
        with pytest.raises(ValueError, match="exact"):
            recertify(folder / "run", tmp_path / "no", **option)
    with pytest.raises(ValueError, match="alpha"):
        certify_data(job(folder, tmp_path / "no", settings={"alpha": 0.01}), progress=False)


def change(record: dict[str, Any], name: str) -> None:
    if name == "scores":
        record["scores"][0][1] += 5
    elif name == "offsets":
        record["offsets"][0] += 1
    elif name == "reach":
        record["reach"] = [0] * len(record["reach"])
    elif name == "votes":
        record["votes"] = [[1, 2, 3]]
    elif name == "input_hash":
        record["input_hash"] = "0" * 64
    else:
        record[name] += 1


@pytest.mark.parametrize("name", ["scores", "offsets", "reach", "votes", "radius", "character_radius", "input_hash"])
def test_verify_refuses_a_changed_row(folder: Path, tmp_path: Path, name: str) -> None:
    run = read_run(folder / "run")
    records = list(run.records())
    change(records[0], name)
    write_table(tmp_path, records)
    assert errors(Run(tmp_path, run.manifest))


def test_a_row_cannot_choose_what_an_edit_changes(tmp_path: Path) -> None:
    """Genuine scores of k-mers with the length of single characters, and every other column derived from it."""
    settings = AdditiveTrainingSettings(levels=2, iterations=9, ngram=5)
    model = ad.AdditiveClassifier(unit="char", settings=settings, progress=False).fit(*documents(60, 1))
    texts = documents(9, 2)[0]
    run = ad.evaluate(model, texts, out=tmp_path / "run", progress=False)
    assert errors(run) == []
    rows = list(run.records())
    singles = [replace(certificate, ngram=1) for certificate in model.certify(texts)]
    forged = [record_of(each, id=row["id"], row=row["row"]) for row, each in zip(rows, singles, strict=True)]
    assert sum(row["radius"] for row in forged) > sum(row["radius"] for row in rows)
    write_table(tmp_path, forged)
    assert all(wrong for _, wrong in verify_run(Run(tmp_path, run.manifest)))
    with pytest.raises(ValueError, match="ngram must be stated"):
        check_manifest(run.manifest | {"ngram": None})
    words = {**model.certify(texts[:1])[0].to_dict(), "unit": {"kind": "word"}}
    with pytest.raises(ValueError, match="ngram must be 1 unless"):
        ad.ExactCertificate.from_dict(words)


def test_verify_with_the_model_derives_the_integers_from_the_text(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = read_run(folder / "run"), Source(str(folder / "data.jsonl"))
    model = load_model(folder / "model")
    assert all(not wrong for _, wrong in verify_with_model(run, model, data))
    assert command("verify", folder / "run", "--model", folder / "model") == 0
    other = tmp_path / "other.jsonl"
    other.write_text((folder / "data.jsonl").read_text().replace("sign1", "w1"))
    assert command("verify", folder / "run", "--model", folder / "model", "--data", other) == 1
    assert (
        f" of {len(run.table) - 1} certificates hold" in capsys.readouterr().out
    )  # each row counts once, but for the failed one
    tighter = ad.AdditiveClassifier(settings=SETTINGS, progress=False).fit(*documents(150, 3, 3))
    with pytest.raises(ValueError, match="another model"):
        list(verify_with_model(run, tighter, data))


def test_verify_with_the_model_names_what_is_not_the_model_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ad.AdditiveClassifier(settings=SETTINGS, progress=False).fit(*documents(150, 1))
    protect(model, *documents(90, 3), label=1, max_false_positives=0.2)
    model.save(tmp_path / "model")
    texts, labels = documents(30, 2)
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    arguments = ("certify", tmp_path / "model", "--data", tmp_path / "data.jsonl", "--out", tmp_path / "run")
    assert command(*arguments, "--ops", "del", "--set", "threshold=-10000000") == 0
    assert "protects" not in capsys.readouterr().out
    assert "It protects" not in summary(*read_entries([tmp_path / "run"]))
    verified = ("verify", tmp_path / "run", "--model", tmp_path / "model")
    assert command(*verified) == 0
    said = capsys.readouterr().err
    assert f"for threshold = -10000000, the model has {model.threshold}" in said
    assert "for ops = ('del',), the model has" in said
    rewrite(tmp_path / "run", lambda manifest: manifest["model"].update(protects="1"))
    assert command(*verified) == 1
    assert "it states that it protects '1'" in capsys.readouterr().out


def test_verify_checks_exact_certificates_in_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (certificate, *_) = load_model(folder / "model").certify([documents(1, 5, 3)[0][0]], immovable={"w1"})
    values = certificate.to_dict()
    (tmp_path / "c.json").write_text(json.dumps(values))
    assert command("verify", tmp_path / "c.json") == 0
    out, err = capsys.readouterr()
    assert out == "1 of 1 certificates hold, derived again in integers\n"
    assert "note: holds against an attacker who may not edit every token" in err
    values["derived"]["radius"] += 1
    (tmp_path / "c.json").write_text(json.dumps(values))
    assert command("verify", tmp_path / "c.json") == 1
