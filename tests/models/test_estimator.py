"""What estimators share: scikit-learn's tags and checks, and models on the Hugging Face Hub."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import adaptdel as ad

TEXTS = ["good fine film", "a fine film", "good good film", "bad film", "a bad dull film", "dull dull"] * 4
LABELS = ["pos", "pos", "pos", "neg", "neg", "neg"] * 4
ESTIMATORS = [
    partial(ad.SmoothedClassifier, noise=ad.Deletion(ad.FixedRate(0.5)), n_estimate=50, n_select=20, progress=False),
    partial(ad.AdditiveClassifier, progress=False),
]
# The checks of scikit-learn that an estimator of texts can pass. The others fit arrays of numbers with two dimensions
# (`check_fit_*`, `check_estimators_*`, `check_classifiers_*`, `check_n_features_*` ...): a text is not such an array.
CHECKS = [
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]


@pytest.mark.parametrize("make", ESTIMATORS, ids=["smoothed", "additive"])
@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_scikit_learn(name: str, make: Any) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    getattr(checks, name)(make.func.__name__, make())


@pytest.mark.parametrize("make", ESTIMATORS, ids=["smoothed", "additive"])
def test_conventions_of_scikit_learn_on_texts(make: Any) -> None:
    utils = pytest.importorskip("sklearn.utils")
    exceptions = pytest.importorskip("sklearn.exceptions")
    validation = pytest.importorskip("sklearn.utils.validation")
    model = make()
    tags = utils.get_tags(model)
    assert tags.estimator_type == "classifier"
    assert tags.input_tags.string
    assert not tags.input_tags.two_d_array
    with pytest.raises(exceptions.NotFittedError):
        validation.check_is_fitted(model)
    params = dict(model.get_params())
    assert model.fit(TEXTS, LABELS) is model
    assert model.get_params() == params
    answers = model.predict(TEXTS)
    assert np.array_equal(model.fit(TEXTS, LABELS).predict(np.array(TEXTS)), answers)  # fit is idempotent
    assert np.array_equal(model.predict(TEXTS[::-1])[::-1], answers)
    assert set(answers) <= set(model.classes_)


@pytest.mark.parametrize("make", ESTIMATORS, ids=["smoothed", "additive"])
def test_a_model_on_the_hub(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    stored = tmp_path / "hub" / "owner" / "spam"

    def upload_folder(*, repo_id: str, folder_path: Path, **options: Any) -> Any:
        shutil.copytree(folder_path, tmp_path / "hub" / repo_id, dirs_exist_ok=True)
        return SimpleNamespace(commit_url=f"https://hub.test/{repo_id}")

    def snapshot_download(repo_id: str, **options: Any) -> str:
        if not (tmp_path / "hub" / repo_id).exists():
            raise hub.errors.HFValidationError("no such repository")
        return str(tmp_path / "hub" / repo_id)

    monkeypatch.setattr(hub, "create_repo", lambda repo_id, **options: (tmp_path / "hub" / repo_id).mkdir(parents=True))
    monkeypatch.setattr(hub, "upload_folder", upload_folder)
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    model = make().fit(TEXTS, LABELS)
    assert model.push_to_hub("owner/spam") == "https://hub.test/owner/spam"
    assert (stored / "README.md").exists()
    certified = [
        [certificate.to_dict() for certificate in each.certify(TEXTS[:6])]
        for each in (model, make.func.from_pretrained("owner/spam"))
    ]
    assert certified[0] == certified[1]
    assert np.array_equal(make.func.from_pretrained(stored).predict(TEXTS), model.predict(TEXTS))
    with pytest.raises(ValueError, match="owner/ham"):
        make.func.from_pretrained("owner/ham")
