"""Transformers on a GPU; without one these tests are skipped, and named as skipped."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from adaptdel.classifiers.transformers import TrainingRun, TransformersClassifier
from tests.classifiers.test_noisy_copies import NOISE, examples
from tests.classifiers.test_transformers import fixed, requests, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
PRECISIONS = ("float32", "tf32", "bfloat16")


def on(device: str, dtype: str = "float32", **options: Any) -> TransformersClassifier:
    tokenizer = fixed("bert")
    return TransformersClassifier(tiny("bert", tokenizer), tokenizer=tokenizer, device=device, dtype=dtype, **options)


def votes(model: TransformersClassifier) -> list[int]:
    return [int(vote) for row in model.votes(requests(model)) for vote in row]


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_votes_are_close_to_those_of_the_cpu_and_do_not_depend_on_batches(dtype: str) -> None:
    model = on("cuda", dtype)
    assert model.self_test_ is not None
    assert votes(model) == votes(on("cuda", dtype, batch_tokens=64))
    assert np.mean(np.array(votes(model)) == votes(on("cpu"))) > (0.99 if dtype == "float32" else 0.9)
    assert torch.get_float32_matmul_precision() == "highest"
    assert next(model.model.parameters()).dtype == torch.float32


def test_memory_that_runs_out_halves_batches() -> None:
    model = on("cuda", batch_tokens=2**16)
    wanted = votes(model)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**22) / torch.cuda.mem_get_info()[1])
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert votes(model) == wanted
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(said) <= 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_training_reads_batches_whole_and_is_reproducible(precision: str, encoder: str) -> None:
    rows, labels = examples()
    models = [TransformersClassifier(encoder, device="cuda") for _ in range(2)]
    for model in models:
        model.fit(rows, labels, noise=NOISE, epochs=2, precision=precision, learning_rate=1e-3, run=TrainingRun())
    losses = [[row["train_loss"] for row in model.training_["history"]] for model in models]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < losses[0][0]
    assert torch.get_float32_matmul_precision() == "highest"
