"""AdditiveClassifier: training, exact certificates against hostile tokens, counterexamples, folders, pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.classifiers import features
from adaptdel.classifiers.bounded import BoundedLinearClassifier
from adaptdel.classifiers.features import ScoreCache, VocabularyFeatures
from adaptdel.core.threat import EVERY_SET
from adaptdel.models import load
from adaptdel.models.additive import TradeOff
from adaptdel.text.units import Characters, check_unit

SETTINGS: Any = {"iterations": 20, "levels": 4, "progress": False}
WORDS = {
    "pos": ["good", "great", "fine", "lovely", "nice", "superb"],
    "neg": ["bad", "poor", "dull", "awful", "weak", "boring"],
    "odd": ["purple", "cubic", "seventh", "liquid", "remote", "tidal"],
}


def films(classes: int, rows: int = 240, seed: int = 0) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(seed)
    names = list(WORDS)[:classes]
    texts, labels = [], []
    for number in range(rows):
        label = names[number % classes]
        own, others = WORDS[label], [word for name in names if name != label for word in WORDS[name]]
        words = [*rng.choice(own, 4), *rng.choice(others, 2), *rng.choice(["film", "plot", "well-made"], 4)]
        texts.append(" ".join(rng.permutation(words)))
        labels.append(label)
    return texts, labels


@pytest.fixture(scope="module", params=[2, 3])
def model(request: Any) -> ad.AdditiveClassifier:
    return ad.AdditiveClassifier(**SETTINGS).fit(*films(request.param))


def test_training_gives_a_front_of_falling_bounds(model: ad.AdditiveClassifier) -> None:
    assert model.score(*films(len(model.classes_), seed=1)) > 0.95
    assert [point.level for point in model.trade_off_] == [0, 1, 2, 3]
    radii = [point.mean_radius for point in model.trade_off_]
    assert radii == sorted(radii)
    chosen = ad.AdditiveClassifier(**SETTINGS).fit(*films(2)).choose(100.0)
    assert chosen.trade_off_[chosen.level].mean_radius == max(point.mean_radius for point in chosen.trade_off_)
    best = max(point.balanced_accuracy for point in chosen.trade_off_)
    point = chosen.choose(0.0).base_classifier().options()["point"]
    assert chosen.trade_off_[point].balanced_accuracy == best


def test_a_grid_search_reaches_the_hyper_parameters() -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    grid = {"l2": [1e-3, 1.0], "max_accuracy_loss": [0.0, 100.0]}
    search = selection.GridSearchCV(ad.AdditiveClassifier(**SETTINGS), grid, cv=2).fit(*films(2, rows=80))
    assert {len(search.cv_results_["params"]), search.best_estimator_.get_params()["levels"]} == {4}


def test_the_same_data_give_the_same_model() -> None:
    fits = [ad.AdditiveClassifier(**SETTINGS).fit(*films(3)) for _ in range(2)]
    assert fits[0].base_.fingerprint() == fits[1].base_.fingerprint()


def test_repeated_texts_are_not_measured_by_a_model_that_has_seen_them() -> None:
    """Held-out figures on texts of random words and labels are those of guessing, also if each occurs four times."""
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in rng.integers(400, size=12)) for _ in range(60)]
    labels = [0, 1] * 30
    settings: Any = {"levels": 2, "iterations": 20, "min_count": 1, "progress": False}
    model = ad.AdditiveClassifier(**settings).fit(texts * 4, labels * 4)
    assert max(point.accuracy for point in model.trade_off_) < 0.8
    with pytest.raises(ValueError, match="two examples of every class"):
        ad.AdditiveClassifier(progress=False).fit(["a", "b", "c"], [0, 0, 1])
    once = ad.AdditiveClassifier(**settings).fit(["a b"] * 6 + ["c d"] * 6, [0] * 6 + [1] * 6)
    assert once.trade_off_[0].accuracy == 1.0  # a class of a single text has no other texts to be measured on


def test_the_bound_holds_for_hostile_tokens(model: ad.AdditiveClassifier) -> None:
    """Whatever a token is made of, it changes no margin between two classes by more than the bound."""
    every = [word for words in WORDS.values() for word in words]
    rng = np.random.default_rng(0)
    hostile = ["-".join(rng.choice(every, rng.integers(1, 40))) for _ in range(500)]
    hostile += ["", "\x00", "ſ", "İ", "好" * 1000, "-".join(every), *("-".join(words * 9) for words in WORDS.values())]
    scores = model.base_classifier().token_scores(hostile)
    assert np.ptp(scores, axis=1).max() == model.reach_  # reached, and not passed
    single = ad.AdditiveClassifier(**SETTINGS).fit(*films(2))
    assert (
        np.abs(single.decision_function(["-".join(WORDS["pos"] * 9)]) - single.decision_function([""])) <= single.reach_
    )


@pytest.mark.parametrize("ops", EVERY_SET)
def test_counterexamples(model: ad.AdditiveClassifier, ops: tuple[str, ...]) -> None:
    """The certified radius is the true one: a text one edit beyond has another label."""
    texts, _ = films(len(model.classes_), rows=30, seed=2)
    attacked = copy(model).set_params(ops=ops)
    complete = 0
    for text, certificate in zip(texts, attacked.certify(texts), strict=True):
        assert certificate.alpha == 0.0
        other = certificate.counterexample()
        if other is None:
            assert certificate.radius == len(text.split())  # no text without insertions has another label
            assert "ins" not in ops
            continue
        assert model.predict([other])[0] != certificate.label
        assert edit_distance(text.split(), other.split(), ops) <= certificate.radius + 1
        complete += 1
    assert complete > 5


def edit_distance(source: Sequence[Any], target: Sequence[Any], ops: tuple[str, ...]) -> int:
    costs = {op: 1 if op in ops else 10**6 for op in ("del", "ins", "sub")}
    line = [k * costs["ins"] for k in range(len(target) + 1)]
    for i, a in enumerate(source, start=1):
        above, line = line, [i * costs["del"]]
        for j, b in enumerate(target, start=1):
            same = above[j - 1] + (0 if a == b else costs["sub"])
            line.append(min(same, above[j] + costs["del"], line[-1] + costs["ins"]))
    return line[-1]


def test_every_text_within_the_radius_has_the_label(model: ad.AdditiveClassifier) -> None:
    """All texts of three known and hostile words around texts of up to two words."""
    vocabulary = ["good", "bad", "-".join(WORDS["neg"] * 3)]
    texts = [" ".join(words) for length in range(6) for words in product(vocabulary, repeat=length)]
    labels = model.predict(texts)
    for text, certificate in zip(texts[:13], model.certify(texts[:13]), strict=True):
        for other, label in zip(texts, labels, strict=True):
            distance = edit_distance(text.split(), other.split(), ("del", "ins", "sub"))
            assert label == certificate.label or distance > certificate.radius


def test_immovable_tokens_and_synonyms(model: ad.AdditiveClassifier) -> None:
    texts, _ = films(len(model.classes_), rows=30, seed=3)
    free = model.certify(texts)
    words = {word for text in texts for word in text.split()}
    fixed = model.certify(texts, immovable=words)
    assert all(a.radius <= b.radius for a, b in zip(free, fixed, strict=True))
    assert all(certificate.radius_for(["del", "sub"]) == certificate.length for certificate in fixed)
    table = {"good": ["fine", "nice"], "bad": ["fine"], "great": ["poor"]}
    limited = copy(model).set_params(ops="sub").certify(texts, synonyms=table)
    changed = 0
    for text, certificate in zip(texts, limited, strict=True):
        options = [[word, *table.get(word, ())] for word in text.split()]
        variants = [" ".join(words) for words in product(*options)]
        labels = model.predict(variants)
        edits = [sum(a != b for a, b in zip(v.split(), text.split(), strict=True)) for v in variants]
        nearest = min((n for n, label in zip(edits, labels, strict=True) if label != certificate.label), default=None)
        assert certificate.radius == (certificate.length if nearest is None else nearest - 1)
        other = certificate.counterexample()
        assert (other is None) == (nearest is None)
        assert other is None or (other in variants and model.predict([other])[0] != certificate.label)
        changed += nearest is not None
    assert changed


@pytest.mark.parametrize(
    ("unit", "synonyms"),
    [
        ("word", {"good": "bad"}),
        ("word", {"good": ["fine", "bad awful"]}),
        ("word", {"well made": ["bad"]}),
        ("word", {"good": [""]}),
        ("word", {"good": [1]}),
        ("char", {"g": ["bad"]}),
        ("byte", {103: [256]}),
        ("word", ["good"]),
    ],
)
def test_synonyms_are_single_tokens(unit: str, synonyms: Any) -> None:
    model = ad.AdditiveClassifier(unit=unit, **SETTINGS).fit(*films(2, rows=24))
    with pytest.raises(ValueError, match="synonyms"):
        model.certify(["good"], synonyms=synonyms)


@pytest.mark.parametrize("immovable", ["good", 3])
def test_immovable_tokens_are_a_collection(immovable: Any, model: ad.AdditiveClassifier) -> None:
    with pytest.raises(ValueError, match="immovable"):
        model.certify(["good"], immovable=immovable)


def test_synonyms_do_not_limit_edits_of_characters() -> None:
    model = ad.AdditiveClassifier(unit="char", **SETTINGS)
    model.fit(["aaab", "aaba", "bbbc", "cbbb"] * 10, [1, 1, 0, 0] * 10)
    free, limited = model.certify(["aaaaaa"])[0], model.certify(["aaaaaa"], synonyms={})[0]
    assert limited.radius_for("sub") > free.radius_for("sub")
    assert limited.character_radius == free.character_radius


def test_bounds_whose_sums_overflow(tmp_path: Path) -> None:
    model = ad.AdditiveClassifier(**SETTINGS).fit(*films(2, rows=24))
    base = model.base_
    assert isinstance(base, BoundedLinearClassifier)
    parts = (base.features, base.classes_, base.weights, base.bias)
    model.base_ = BoundedLinearClassifier(*parts, [2**61] * 4)
    with pytest.raises(ValueError, match="64 bits"):
        model.certify(["good"])
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="bounds"):
        load(tmp_path / "model")


def test_long_tokens_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[Any] = []

    def lengths(tokens: Any) -> Any:
        scored.extend(tokens)
        return np.array([[len(token)] for token in tokens])

    cache = ScoreCache(1)
    for tokens in (["a", "b" * 999, "cc"], ["b" * 999, "ddd"], ["ddd", "cc", "a"], []):
        assert cache.lookup(tokens, lengths)[:, 0].tolist() == [len(token) for token in tokens]
    assert sorted(scored) == ["a", "b" * 999, "b" * 999, "cc", "ddd"]
    monkeypatch.setattr(features, "CACHED_TOKENS", 4)
    for tokens in (["eeee", "a"], ["ddd", "fffff"], list("abcdefgh")):
        assert cache.lookup(tokens, lengths)[:, 0].tolist() == [len(token) for token in tokens]


def test_thresholds_move_answers_and_radii() -> None:
    base = ad.AdditiveClassifier(**SETTINGS).fit(*films(2))
    texts, _ = films(2, rows=40, seed=4)
    scores = base.decision_function(texts)
    strict = copy(base).set_params(threshold=int(scores.max()) - 1)
    assert (strict.predict(texts) == "pos").sum() == (scores == scores.max()).sum()
    certificate = strict.certify([texts[int(scores.argmin())]])[0]
    assert certificate.radius > base.certify([texts[int(scores.argmin())]])[0].radius
    assert strict.predict([certificate.counterexample()])[0] == "pos"


def test_a_folder_names_a_clip_that_is_there(model: ad.AdditiveClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    path = tmp_path / "model" / "adaptdel.json"
    path.write_text(path.read_text().replace('"point": ', '"point": 1'))
    with pytest.raises(ValueError, match="point"):
        load(tmp_path / "model")


def test_a_notebook_shows_the_text_with_its_scores(model: ad.AdditiveClassifier) -> None:
    certificate = model.certify(["good great <film> bad"])[0]
    shown = certificate._repr_html_()
    assert f"<th>radius</th><td>{certificate.radius}</td>" in shown
    second, first = sorted(certificate.evidence.class_scores(certificate.plan))[-2:]
    assert f"<td>{first - second:,}</td>" in shown
    assert ">&lt;film&gt;</span>" in shown
    stored = ad.Certificate.from_dict(certificate.to_dict())
    assert "span" not in stored._repr_html_()


@pytest.mark.parametrize("unit", ["char", "byte", "chunk:4"])
@pytest.mark.parametrize("ops", ["edit", "del,ins", "ins"])
def test_other_units(unit: str, ops: str) -> None:
    """The radius is the true one, also where an input ends with a chunk that is shorter than the others."""
    texts, labels = films(2, rows=120)
    model = ad.AdditiveClassifier(unit=unit, ops=ops, **SETTINGS).fit(texts, labels)
    split = check_unit(unit).split
    for text, certificate in zip(texts[:10], model.certify(texts[:10]), strict=True):
        other = certificate.counterexample()
        assert model.predict([other])[0] != certificate.label
        changed = edit_distance(split(text), split(other), certificate.ops)
        assert changed <= certificate.radius + 1


def test_no_character_adds_more_than_is_assumed() -> None:
    texts, labels = films(2, rows=120)
    model = ad.AdditiveClassifier(unit="char", **SETTINGS)
    base = model.fit([text.replace("i", "\u0130") for text in texts], labels).base_
    scores = base.token_scores([chr(code) for code in range(0x3000)])[:, 1]
    assert (scores.max(), -scores.min()) == tuple(base.reach_over(a, Characters())[1 - a] for a in (0, 1))


def orders(rows: int, seed: int) -> tuple[list[str], list[int]]:
    """Texts of the same letters, whose order alone tells the class."""
    rng = np.random.default_rng(seed)
    halves = (("ac", "gt"), ("ca", "tg"))
    return ["".join(rng.choice(halves[n % 2], 10)) for n in range(rows)], [n % 2 for n in range(rows)]


@pytest.mark.parametrize("unit", ["char", "byte"])
def test_runs_of_characters(unit: str, tmp_path: Path) -> None:
    """Order is learned, and no text within the radius has another label, by trying all edits of a character."""
    model = ad.AdditiveClassifier(unit=unit, ngram=3, **SETTINGS).fit(*orders(120, 0))
    texts, labels = orders(40, 1)
    assert model.score(texts, labels) == 1.0
    single = ad.AdditiveClassifier(unit=unit, **SETTINGS).fit(*orders(120, 0))
    assert single.score(texts, labels) < 0.8
    certificates = model.certify(texts)
    assert max(certificate.radius for certificate in certificates) >= 1
    for text, certificate in zip(texts, certificates, strict=True):
        assert certificate.length == len(text)
        assert certificate.counterexample() is None
        near = {text[:i] + new + text[j:] for i in range(len(text) + 1) for j in (i, i + 1) for new in ["", *"acgtx"]}
        if certificate.radius >= 1:
            assert set(model.predict(sorted(near)).tolist()) == {certificate.label}
        assert "span" in certificate._repr_html_()
    model.save(tmp_path / "model")
    assert [c.to_dict() for c in load(tmp_path / "model").certify(texts)] == [c.to_dict() for c in certificates]
    with pytest.raises(ValueError, match="ngram"):
        model.certify(texts, synonyms={})
    with pytest.raises(ValueError, match="ngram"):
        ad.AdditiveClassifier(ngram=3).fit(texts, labels)


@pytest.mark.parametrize("kind", ["counts", "hashed", "bayes", "three", "ridge"])
def test_pipelines(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("skops")
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    texts, labels = films(3 if kind == "three" else 2)
    texts = [text.replace("good", "Good!,") for text in texts]
    vectorizer = HashingVectorizer(n_features=16, norm=None) if kind == "hashed" else CountVectorizer(min_df=2)
    estimator = {"bayes": MultinomialNB, "ridge": RidgeClassifier}.get(kind, LogisticRegression)()
    pipeline = make_pipeline(vectorizer, estimator).fit(texts, labels)
    for bound in (1e3, 1e200):
        loose = ad.AdditiveClassifier.from_sklearn(pipeline, bound=bound)
        assert loose.predict(texts).tolist() == pipeline.predict(texts).tolist()
    tight = ad.AdditiveClassifier.from_sklearn(pipeline, bound=0.1)
    if kind == "counts":
        thin = deepcopy(pipeline)
        thin[-1].sparsify()
        assert (
            ad.AdditiveClassifier.from_sklearn(thin, bound=0.1).predict(texts).tolist() == tight.predict(texts).tolist()
        )
    certificates = tight.certify(texts)
    assert max(certificate.radius for certificate in certificates) > 0
    for text, certificate in zip(texts[:20], certificates, strict=False):
        other = certificate.counterexample()
        assert tight.predict([other])[0] != certificate.label
        assert edit_distance(text.split(), other.split(), ("del", "ins", "sub")) == certificate.radius + 1
    tight.save(tmp_path / "model")
    assert [c.to_dict() for c in load(tmp_path / "model").certify(texts)] == [c.to_dict() for c in certificates]


def test_a_pipeline_that_is_fitted_again() -> None:
    pytest.importorskip("sklearn")
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = films(2)
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, labels)
    model = ad.AdditiveClassifier.from_sklearn(pipeline, bound=1.0)
    pipeline.fit(["apple bad", "zebra good"], ["pos", "neg"])
    assert model.predict(texts).tolist() == labels


def test_pipelines_that_are_not_additive() -> None:
    pytest.importorskip("sklearn")
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = films(2)
    for vectorizer, word in [
        (TfidfVectorizer(), "TfidfVectorizer"),
        (HashingVectorizer(), "norm"),
        (CountVectorizer(ngram_range=(1, 2)), "ngram_range"),
        (CountVectorizer(binary=True), "binary"),
        (CountVectorizer(analyzer="char_wb"), "analyzer"),
        (CountVectorizer(input="filename"), "input"),
        (CountVectorizer(dtype=np.uint8), "dtype"),
    ]:
        pipeline = make_pipeline(vectorizer, LogisticRegression())
        if word != "input":
            pipeline.fit(texts, labels)
        with pytest.raises(ValueError, match=word):
            ad.AdditiveClassifier.from_sklearn(pipeline, bound=1.0)
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, labels)
    with pytest.raises(ValueError, match="bound"):
        ad.AdditiveClassifier.from_sklearn(pipeline, bound=0)
    for weight in (np.nan, np.inf):
        pipeline[-1].coef_[0, 0] = weight
        with pytest.raises(ValueError, match="finite"):
            ad.AdditiveClassifier.from_sklearn(pipeline, bound=1.0)


@pytest.mark.parametrize(
    ("texts", "labels", "word"),
    [
        (["a", "b"], [0, 0], "labels"),
        (["a", "b"], [0, 1], "two examples"),
        (["a"], [0, 1], "length"),
        (["a"], None, "y must"),
        ("a", [0], "X"),
    ],
)
def test_bad_training_data(texts: Any, labels: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ad.AdditiveClassifier().fit(texts, labels)


def test_odd_texts() -> None:
    """Empty texts, a vocabulary of a word, and words that all classes share."""
    model = ad.AdditiveClassifier(**SETTINGS).fit(["a"] * 6 + [""] * 6, [0] * 6 + [1] * 6)
    for certificate in model.certify(["", " \t", "a", "b", "a " * 5000]):
        other = certificate.counterexample()
        assert other is None or model.predict([other])[0] != certificate.label


def test_a_median_radius_of_0_is_said_with_what_lifts_it() -> None:
    model = ad.AdditiveClassifier()
    points = [(0.9, 0.95, 0.3, 0.0), (0.88, 0.9, 0.8, 0.0), (0.7, 0.789, 1.5, 1.0)]
    model.trade_off_ = [TradeOff(level, 9 - level, *point) for level, point in enumerate(points)]
    model.base_ = BoundedLinearClassifier(
        VocabularyFeatures(["a"]), [0, 1], np.ones((3, 2, 1), np.int32), np.ones((3, 1), np.int32), [9, 8, 7]
    )
    (sentence,) = model.radius_warnings()
    assert "--max-accuracy-loss 16.1 makes the median radius 1.0 and the mean 1.50 instead of 0.30" in sentence
    assert "accuracy of 70.0% instead of 90.0% and a mean recall of the classes of 78.9% instead of 95.0%" in sentence
    model.trade_off_ = model.trade_off_[:2]
    assert "under every clip" in model.radius_warnings()[0]
    model.trade_off_[0] = TradeOff(0, 9, 0.9, 0.9, 2.0, 1.0)
    assert model.radius_warnings() == []
