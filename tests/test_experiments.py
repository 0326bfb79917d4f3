"""The paper's protocol end to end, and the lab notebook's figures."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel.cli import main as adaptdel
from adaptdel.files import read_json
from adaptdel.runs.storage import read_run
from adaptdel.text.data import read_examples
from experiments.paper import __main__ as program
from experiments.paper.protocol import ADAPTIVE, METHODS, RATES, TITLES, Protocol
from experiments.paper.published import ABLATION, ATTACKS, DATA, MAIN, RECIPES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"


def rows_of(count: int, classes: int = 2) -> list[dict[str, Any]]:
    """Texts of one letter a word whose lengths fill the paper's bins, and their labels."""
    rng, letters = random.Random(count), ["abc", "xyz", "mno", "def", "pqr"]
    lengths = (20, 150, 250, 400)
    words = [rng.choices(letters[n % classes], k=lengths[n // classes % 4]) for n in range(count)]
    return [{"text": " ".join([*row, f"{n}"]), "label": n % classes} for n, row in enumerate(words)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for split, count in (("train", 40), ("test", 4)):
        lines = [json.dumps(row) + "\n" for row in rows_of(count)]
        (folder / f"spamassassin.{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def protocol_run(capsys: pytest.CaptureFixture[str], *options: object) -> tuple[int, str]:
    status = program.main([*map(str, options)])
    return status, capsys.readouterr().err


def test_the_tables_of_a_linear_model_and_a_run_that_was_stopped(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands that were finished are not run again."""
    options = ["--data", files, "--model", "linear", "--sets", "spamassassin", "--parts", "main", "--out", tmp_path]
    options += ["--methods", "nosmooth,adaptdel"]
    run, commands = program.run, list[str]()

    def stopped(step: Any) -> tuple[int, str]:
        commands.append(step.arguments[0])
        return (program.INTERRUPTED, "") if len(commands) == 4 else run(step)

    monkeypatch.setattr(program, "run", stopped)
    assert protocol_run(capsys, *options)[0] == program.INTERRUPTED
    status, said = protocol_run(capsys, *options)
    assert status == 0
    assert "6 commands, 3 finished" in said
    assert commands == ["train", "certify", "train", "certify", "certify", "recertify", "report"]
    page = (tmp_path / "tables.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("| SpamAssassin | AdaptDel 90% |"))
    totals: Any = read_run(tmp_path / "runs" / "spamassassin-adaptdel").manifest.totals
    cells = [cell.strip() for cell in line.split("|")][3:]
    assert cells[:2] == [f"{100 * totals['clean_accuracy']:.2f}", "97.73"]
    assert cells[2].startswith(f"{totals['mean_radius']:.2f} ± ")
    assert cells[3] == "6.25 ± 0.053"
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page)
    assert len(pictures) == 4
    assert all((tmp_path / name).is_file() for name in pictures)
    (files / "spamassassin.test.jsonl").unlink()
    status, said = protocol_run(capsys, *options)
    assert (status, "no spamassassin.test" in said) == (2, True)


def write_roberta(folder: Path) -> None:
    """A RoBERTa of a few parameters with its tokenizer, as a folder on the hub has it."""
    transformers = pytest.importorskip("transformers")
    from tests.classifiers.test_transformers import fixed

    tokenizer = fixed("roberta", max_length=14)
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    transformers.RobertaModel(config).save_pretrained(folder)


def test_what_fails_is_named_and_the_rest_is_reported(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(arguments: Any) -> None:
        if "runs/spamassassin-adaptdel" in arguments[-1] and arguments[0] == "certify":
            raise RuntimeError("the device is gone")
        adaptdel([*arguments, "--sample", "0"] if arguments[0] == "calibrate" else arguments)

    monkeypatch.setattr(program, "adaptdel", failing)
    options = ["--data", files, "--model", "linear", "--sets", "spamassassin", "--parts", "main", "--out", tmp_path]
    status, said = protocol_run(capsys, *options, "--methods", "nosmooth,adaptdel,adaptdel+")
    assert status == 1
    assert "RuntimeError: the device is gone" in said.split("failed: ")[1]
    page = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "| SpamAssassin | NoSmooth |" in page
    failed = page.split("## Failed")[1].split("##")[0]
    assert "spamassassin-adaptdel: RuntimeError: the device is gone" in failed
    assert re.search(r"adaptdel calibrate .*: No such option", failed)
    assert (tmp_path / "reports" / "spamassassin" / "report.json").exists()
    monkeypatch.setattr(program, "adaptdel", adaptdel)  # what failed is run again, and the report
    assert protocol_run(capsys, *options, "--methods", "nosmooth,adaptdel")[0] == 0
    report = read_json(tmp_path / "reports" / "spamassassin" / "report.json", "a report")
    assert [run["name"] for run in report["runs"]] == ["NoSmooth", "AdaptDel 90%"]


# The paper's Tables 2 and 3 (Appendix D), and its Section 4: training, calibration of SpamAssassin, certification.
PRINTED_TRAINING = {
    "learning_rate": 2e-5, "weight_decay": 1e-6, "clip": 1.0, "batch_size": 32, "epochs": 200, "warmup": 10.0,
    "patience": 25, "batches": "shuffled", "validation": 0.1, "unit": "word", "class_weight": None,
}  # fmt: skip
PRINTED_CALIBRATION = {"threshold": 0.75, "n_select": 32, "n_estimate": 256, "per_bin": 50, "objective": "paper"}
PRINTED_BINS = [0, 137, 230, 324]
# alpha / 2 for each of the two bounds, which for two classes are those of one probability
PRINTED_RUN = {"alpha": 0.05 / 2, "n_select": 1000, "n_estimate": 4000, "sampling": "fixed", "bound": "paper"}
PRINTED_NOISE: dict[str, Any] = {
    "nosmooth": {"kind": "none"},
    "ranmask": {"kind": "masking", "fraction": 0.9},
    "cert-ed": {"kind": "deletion", "rate": {"kind": "fixed", "p": 0.9}},
    "adaptdel": {"kind": "deletion", "rate": {"kind": "length", "p_min": 0.9, "k": 23, "p_max": 1.0}},
}


@pytest.mark.slow
def test_a_roberta_is_trained_calibrated_and_certified_as_the_paper_prints(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field by field, from what the model folders and the manifests record."""
    write_roberta(tmp_path / "roberta")
    options = ["--data", files, "--model", tmp_path / "roberta", "--sets", "spamassassin", "--parts", "main"]
    status, said = protocol_run(capsys, *options, "--out", tmp_path / "out")
    assert status == 0
    assert "hours" in said
    for method in METHODS:
        name = f"spamassassin-{method}"
        record = read_json(tmp_path / "out" / "models" / name / "training.json", "a record")
        used = record["settings"]
        assert {field: used[field] for field in PRINTED_TRAINING} == PRINTED_TRAINING
        assert len(record["history"]) <= 200
        plan = read_run(tmp_path / "out" / "runs" / name).manifest.plan.to_dict()
        printed = PRINTED_RUN | ({"bound": "tight"} if method == "cert-ed" else {})  # its closed form
        assert {field: plan[field] for field in PRINTED_RUN} == printed
        if method in PRINTED_NOISE:
            assert plan["noise"] == PRINTED_NOISE[method]
    assert used["rates"] == [0.7, 0.99]  # of AdaptDel+, the last
    calibration = read_json(tmp_path / "out" / "calibrated" / name / "calibration.json", "a record")
    settings = calibration["settings"]
    assert {field: settings[field] for field in PRINTED_CALIBRATION} == PRINTED_CALIBRATION
    assert settings["bins"] == PRINTED_BINS
    assert plan["noise"]["rate"]["kind"] == "binned"
    page = (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
    for method, title in METHODS.items():
        assert f"| SpamAssassin | {title} |" in page, method
    assert list(ADAPTIVE)  # with radii of the tight bound from the same votes
    for method in ADAPTIVE:
        assert (
            read_run(tmp_path / "out" / "runs" / f"spamassassin-{method}-tight").manifest.plan.to_dict()["bound"]
            == "tight"
        )


def test_the_four_data_sets_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yelp and IMDB as on the hub: Parquet files in a folder, which the library of data sets streams."""
    hub, archive = tmp_path / "hub", tmp_path / "advbench.zip"
    for name, inner, classes in (
        ("Yelp/yelp_review_full", "yelp_review_full", 5),
        ("stanfordnlp/imdb", "plain_text", 2),
    ):
        (hub / name / inner).mkdir(parents=True)
        for split, count in (("train", 10), ("test", 5)):
            table = pa.Table.from_pylist(rows_of(count, classes))
            pq.write_table(table, hub / name / inner / f"{split}-00000-of-00001.parquet")
    with zipfile.ZipFile(archive, "w") as packed:
        for folder in ("assassin", "LUN"):
            for split, count in (("train", 6), ("dev", 3)):
                lines = ["text,label", *(f'"{row["text"]}, a",{row["label"]}' for row in rows_of(count))]
                packed.writestr(f"{folder}/{split}.csv", "\n".join(lines) + "\n")

    def load_dataset(path: str, *, split: str, streaming: bool) -> Any:
        assert streaming
        return (row for file in (hub / path).rglob(f"{split}-*.parquet") for row in pq.read_table(file).to_pylist())

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(program, "run_all", lambda protocol, steps: 0)
    options = ["--out", tmp_path / "out", "--advbench", archive.as_uri()]
    status, said = protocol_run(capsys, *options)
    assert (status, said.index("hours") < said.index("from the hub")) == (0, True)  # the costs come first
    for name, classes in zip(TITLES, (5, 2, 2, 2), strict=True):
        protocol = Protocol(tmp_path / "out" / "data", tmp_path / "out", sets=[name], methods=["cert-ed"])
        train, certify = protocol.steps(["main"])[:2]
        for step in (train, certify):
            file = step.arguments[step.arguments.index("--data") + 1]
            assert len(set(read_examples(file).labels)) == classes
        assert ("--sample 10000" in certify.command) is (name == "yelp")
    with gzip.open(tmp_path / "out" / "data" / "imdb.test.jsonl.gz", "rt", encoding="utf-8") as stored:
        assert [json.loads(line) for line in stored] == rows_of(5)
    status, said = protocol_run(capsys, *options)
    assert (status, "hub" in said) == (0, False)  # nothing is fetched again
    (tmp_path / "no.zip").write_bytes(b"<html>")
    options = ["--out", tmp_path / "other", "--sets", "lun", "--advbench", tmp_path / "no.zip"]
    status, said = protocol_run(capsys, *options)
    assert (status, "by hand" in said) == (2, True)


def test_the_commands_are_those_of_the_paper(tmp_path: Path) -> None:
    """Every row of its tables has its runs, and k is the printed one."""
    steps = Protocol(tmp_path, tmp_path / "out", attacker="attack-env/adaptdel").steps()
    commands = [step.command for step in steps]
    assert len(set(commands)) == len(commands)
    attacked = {f"{name}-{method}-{recipe}" for name, method in ATTACKS for recipe in RECIPES}
    assert {step.out.name for step in steps if step.arguments[0] == "attack"} == attacked
    for name, rate in ABLATION:
        k = ABLATION[name, rate][0]
        trained = [command for command in commands if f"--rate 0.{rate.rstrip('0')} --set k={k:g} " in command]
        assert any(f"/{name}.train" in command for command in trained)
    assert len(DATA) * (len(METHODS) + len(RATES) - 1) == sum(step.arguments[0] == "certify" for step in steps)
    settings = ("train", "certify", "calibrate", "attack")
    assert all("--settings paper" in step.command for step in steps if step.arguments[0] in settings)
    # By its costs: 342 hours of training, 41.5 of calibration, 254 of certification.
    assert sum(step.hours or 0 for step in Protocol(tmp_path, tmp_path).steps(["main"])) == pytest.approx(638, abs=1)


def test_attacks_are_shown_beside_the_paper_s(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "ATTACKER", tmp_path / "none")  # also where `make attack-env` was run
    options = ["--data", files, "--model", "linear", "--sets", "spamassassin", "--out", tmp_path]
    assert protocol_run(capsys, *options, "--methods", "adaptdel", "--parts", "main")[0] == 0
    model, out = tmp_path / "models" / "spamassassin-adaptdel", tmp_path / "attacks" / "spamassassin-adaptdel-clare"
    with pytest.raises(SystemExit) as stop:
        adaptdel(["attack", str(model), "--data", str(files / "spamassassin.test.jsonl"), "--out", str(out),
                  "--set", "queries=20", "--set", "votes=10"])  # fmt: skip
    assert stop.value.code == 0
    assert protocol_run(capsys, *options, "--methods", "adaptdel", "--parts", "attacks")[0] == 0
    page = (tmp_path / "tables.md").read_text(encoding="utf-8").split("## Table 8")[1]
    assert re.search(
        r"\| AdaptDel 90% \| – / – \| 0\.975 / 0\.945 \| – / – \| .* \| \d\.\d{3} / \d\.\d{3} \| 0\.970 / 0\.935", page
    )


SETS = {
    "SpamAssassin": "spamassassin", "IMDB": "imdb", "LUN": "lun", "Yelp": "yelp", "AG News": "agnews", "SST-2": "sst2"
}  # fmt: skip


def table(page: str, title: str) -> list[list[str]]:
    """The rows of the first table after a title, without emphasis."""
    lines = (ROOT / page).read_text(encoding="utf-8").partition(title)[2].replace("**", "").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = lines[start + 2 : start + 2 + next(n for n, line in enumerate(lines[start + 2 :]) if line[:1] != "|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def at(point: dict[str, float], digits: int) -> str:
    return f"{point['mean_radius']:.{digits}f} at {100 * point['accuracy']:.1f}%"


def test_the_figures_of_exact_models_are_those_of_their_file() -> None:
    fronts = read_json(RESULTS / "exact-fronts.json", "a result")
    shown = dict.fromkeys(SETS, 0)
    for page, title in (("README.md", "## Results"), ("docs/results.md", "## Exact models")):
        for name, radius, *others in table(page, title):
            data, count = (part.strip() for part in name.split(",", 1))
            front = fronts[SETS[data]]
            chosen, digits = front["chosen"], 2 if front["chosen"]["mean_radius"] < 1 else 1
            assert f"{front['test_rows']:,} " in count
            if page == "README.md":
                shown_radius, median, accuracy = re.fullmatch(r"(\S+) \((?:median )?(\d+)\) at (\S+)", radius).groups()  # type: ignore[union-attr]
                assert (f"{shown_radius} at {accuracy}", median) == (
                    at(chosen, digits),
                    f"{chosen['median_radius']:.0f}",
                )
            else:
                characters = [100 * chosen["certified_by_characters"][edits] for edits in "123"]
                splits = ", ".join(at(split, digits) for split in front["other_splits"])
                assert radius == at(chosen, digits)
                assert others == [
                    f"{chosen['median_radius']:.0f}", " / ".join(f"{value:.0f}" for value in characters) + "%", splits
                ]  # fmt: skip
                assert ("GloVe" in name) == front["settings"]["vectors"]
            shown[data] += 1
    assert set(shown.values()) == {2}


def test_the_figures_of_smoothed_models_are_those_of_their_files() -> None:
    rows = table("docs/results.md", "## Smoothed models")
    assert len(rows) == 6
    for name, *cells in rows:
        data, model, _ = name.split(", ", 2)
        values = read_json(RESULTS / f"main-{SETS[data]}-{model.lower()}.json", "a result")["values"]
        for method, cell, gain in (("cert-ed", cells[0], ""), ("adaptdel", *cells[1:3]), ("adaptdel+", *cells[3:])):
            if cell == "–":
                continue
            own = values[method]
            certified = 100 * (own["certified"] + own["certified_zero"]) / own["inputs"]
            assert cell == f"{100 * own['clean_accuracy']:.1f} · {certified:.1f} · {own['mean_radius']:.2f}"
            if gain:
                paper = MAIN[SETS[data], method][1] / MAIN[SETS[data], "cert-ed"][1]  # type: ignore[operator]
                better = own["mean_radius"] / values["cert-ed"]["mean_radius"]
                assert gain == f"{100 * (better - 1):+.0f}% ({100 * (paper - 1):+.0f}%)"


def test_the_table_of_filters_is_that_of_its_file() -> None:
    runs = read_json(RESULTS / "detection.json", "a result")["runs"]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    sets = [[run for run in runs if (run["data"], run["words"]) == (name, 0)] for name in ("prompts", "spamassassin")]
    cases: list[tuple[str, Any]] = [
        ("as they are", lambda run: run["both"]["clean"]),
        ("with any text before and after", lambda run: run["both"]["padded"]),
        ("with both", lambda run: run["both"]["padded_edits"]["2"]),
    ]
    for title, value in cases:
        line = next(line for line in page.splitlines() if line.startswith(f"| {title} |"))
        for of_set in sets:
            found = [100 * value(run) for run in of_set if run["rate"] == 0.02]
            assert f"**{sum(found) / len(found):.0f}%** ({min(found):.0f} to {max(found):.0f})" in line
