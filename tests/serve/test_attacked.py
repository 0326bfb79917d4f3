"""``adaptdel attack`` against a running server: the votes it queries, the run around it, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.attacks.attack_run import read_attack_run
from adaptdel.attacks.edits import edit_distance
from adaptdel.attacks.target import TimeLimitReached
from adaptdel.hyperparameters import AttackSettings
from adaptdel.serve import attacked
from adaptdel.serve.attacked import ServedShares, ServedSource
from tests.run_files import examples, make_model, run, write_rows
from tests.serve.serving import SEED, process

TOKEN = "a-long-and-secret-token"
SETTINGS = AttackSettings(inputs=6, queries=50, verify_votes=2000)
ROWS = [(text, label) for text, label in examples(60, seed=9, labels=("neg", "pos")) if len(text.split()) > 10]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("attacked")
    make_model(place / "model", labels=("neg", "pos"))
    make_model(place / "strict", labels=("neg", "pos"), threshold=0.8)
    write_rows(place / "test.jsonl", [{"text": text, "label": label} for text, label in ROWS])
    (place / "token.txt").write_text(TOKEN + "\n")
    (place / "token.txt").chmod(0o600)
    return place


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    models = (f"first={folder / 'model'}", f"strict={folder / 'strict'}")
    with process(*models, "--max-texts", 5, "--seed", SEED, ADAPTDEL_TOKEN=TOKEN) as (url, _):
        yield url


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADAPTDEL_TOKEN", raising=False)


def shares(address: str, model: str | None = None, settings: AttackSettings = SETTINGS) -> ServedShares:
    query = ServedShares(ServedSource(address, model, TOKEN).load(settings), settings)
    query.begin()
    return query


def test_queries_are_votes_of_the_server_in_requests_that_it_accepts(address: str, folder: Path) -> None:
    batch = [text for text, _ in ROWS[:12]]  # the server takes five texts a request
    query = shares(address)
    table = query(batch)
    assert table.shape == (12, 2)
    assert np.allclose(table.sum(axis=1), 1)
    assert query.spent.queries == 12
    assert 0 < query.spent.votes <= 12 * SETTINGS.votes
    library = ad.SmoothedClassifier.load(folder / "model").set_params(seed=SEED, progress=False)
    expected = library.set_params(n_select=SETTINGS.votes).predict(batch)
    assert [("neg", "pos")[place] for place in table.argmax(axis=1)] == list(expected)
    assert np.array_equal(query(batch), table)  # one draw for each text, as long as the server runs


def test_the_threshold_of_a_served_model_is_at_one_half(address: str, folder: Path) -> None:
    batch = [text for text, _ in ROWS]
    plain, strict = shares(address, "first")(batch)[:, 1], shares(address, "strict")(batch)[:, 1]
    assert (plain > 0.5).sum() > (strict > 0.5).sum() > 0
    library = ad.SmoothedClassifier.load(folder / "strict").set_params(seed=SEED, progress=False)
    expected = library.set_params(n_select=SETTINGS.votes).predict(batch)
    assert [("neg", "pos")[int(share > 0.5)] for share in strict] == list(expected)


def test_the_time_limit(address: str) -> None:
    with pytest.raises(TimeLimitReached):
        shares(address, settings=AttackSettings(seconds=1e-9))(["a text"])


class WordsTakenAway:
    """In place of a recipe of TextAttack: take words away from the front until the votes turn."""

    def __init__(self, shares: Any, recipe: str, settings: AttackSettings, parts: Any) -> None:
        assert recipe == "deepwordbug"
        self.shares, self.settings, self.parts = shares, settings, parts

    def __call__(self, text: str, tokens: Any, label: int) -> dict[str, Any]:
        self.shares.begin()
        words = text.split()
        queries = [" ".join(words[first:]) for first in range(len(words))][: self.settings.queries]
        answers = self.shares(queries).argmax(axis=1) == label
        record = {"text": None, "words_changed": None, "queries": len(queries), "votes": self.shares.spent.votes}
        if not answers[0]:
            return record | {"outcome": "skipped"}
        if answers.all():
            return record | {"outcome": "failure"}
        removed = int(np.argmin(answers))
        return record | {"outcome": "success", "text": queries[removed], "words_changed": removed}


def test_a_run_against_a_server(
    address: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attacked, "TextAttackAttacker", WordsTakenAway)
    out = tmp_path / "run"
    limits = ("--inputs", len(ROWS), "--queries", 150)
    common = ("attack", address, "--data", folder / "test.jsonl", "--recipe", "deepwordbug", *limits)
    token = ("--token-file", folder / "token.txt")
    assert run(*common, *token, "--out", out, "--json") == 0
    measures = json.loads(capsys.readouterr().out)["attacks"][0]
    assert measures["inputs"] == len(ROWS)
    assert measures["success"] > 0
    assert measures["verified"] > 0
    assert measures["violations"] == 0
    attack = read_attack_run(out)
    assert attack.manifest["model"] == {"path": f"{address.rstrip('/')}/first", "base": "linear", "served": True}
    assert TOKEN not in "".join(path.read_text() for path in out.iterdir())
    library = ad.SmoothedClassifier.load(folder / "model").set_params(seed=SEED, progress=False)
    assert attack.manifest["model_hash"] == library.base_classifier().fingerprint()
    assert attack.manifest["noise"] == library.rule().noise.to_dict()
    texts = dict(enumerate((text for text, _ in ROWS), start=1))
    for record in attack.records:
        [certificate] = library.certify([texts[record["row"]]])
        right = certificate.label == record["truth"]
        assert record["answer"] == certificate.label
        assert record["radius"] == (certificate.radius if right else -1)
        if record["outcome"] == "success":
            words, attacked_words = texts[record["row"]].split(), record["text"].split()
            assert record["distance"] == edit_distance(words, attacked_words) == record["words_changed"]
            if record["verified"]:
                assert record["answer_after"] != record["truth"]
    assert run("report", out, "--out", tmp_path / "report") == 0
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "first" in page
    assert "deepwordbug" in page
    monkeypatch.setattr(WordsTakenAway, "__call__", None)  # a finished run is not attacked again
    assert run(*common, *token, "--out", out) == 0
    assert run(*common, *token, "--served-model", "strict", "--out", out) == 2
    assert "holds another run of attacks" in capsys.readouterr().err


def test_an_interrupted_run_is_resumed(
    address: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTDEL_TOKEN", TOKEN)
    monkeypatch.setattr(attacked, "TextAttackAttacker", WordsTakenAway)
    common = ("attack", address, "--data", folder / "test.jsonl", "--recipe", "deepwordbug", "--inputs", 6)
    assert run(*common, "--out", tmp_path / "whole") == 0
    called: list[str] = []
    attack = WordsTakenAway.__call__

    def interrupted(self: Any, text: str, tokens: Any, label: int) -> dict[str, Any]:
        called.append(text)
        if len(called) == 4:
            raise ValueError("the connection broke")
        return attack(self, text, tokens, label)

    monkeypatch.setattr(WordsTakenAway, "__call__", interrupted)
    assert run(*common, "--out", tmp_path / "run") == 2
    assert len(read_attack_run(tmp_path / "run").records) == 3
    assert run(*common, "--out", tmp_path / "run") == 0
    assert len(called) == 4 + 3
    whole, resumed = (read_attack_run(tmp_path / name).records for name in ("whole", "run"))
    assert [record | {"seconds": 0} for record in whole] == [record | {"seconds": 0} for record in resumed]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--recipe", "adaptive"], "the adaptive attack needs the scores of the base model"),
        (["--fresh-votes"], "the server decides whether votes are drawn anew"),
        (["--served-model", "third"], "there is no model 'third', only 'first', 'strict'"),
        (["--ops", "swap"], 'ops must be "edit" or some of "del", "ins", "sub"'),
        (["--token-file", "missing.txt"], "give either --token-file or the variable ADAPTDEL_TOKEN"),
    ],
)
def test_what_cannot_be_attacked_is_one_sentence(
    address: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.setenv("ADAPTDEL_TOKEN", TOKEN)
    monkeypatch.setattr(attacked, "TextAttackAttacker", WordsTakenAway)
    common = ("attack", address, "--data", folder / "test.jsonl", "--out", tmp_path / "run")
    assert run(*common, "--recipe", "deepwordbug", *arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_no_token_and_no_server(address: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--data", folder / "test.jsonl", "--recipe", "deepwordbug", "--out", tmp_path / "run")
    for url, sentence in ((address, "token"), ("http://127.0.0.1:1", "http://127.0.0.1:1: the attack cannot go on")):
        assert run("attack", url, *common) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert len(error.strip().splitlines()) == 1
        assert not (tmp_path / "run").exists()
    options = ("--served-model", "first")
    assert run("attack", folder / "model", *common, *options) == 2
    assert "--served-model is for a server" in capsys.readouterr().err
