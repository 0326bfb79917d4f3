"""The steps of the training loop: large batches in parts, memory that runs out, and FreeLB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from adaptdel.classifiers.noisy_copies import VALIDATION  # noqa: E402
from adaptdel.classifiers.noisy_trainer import FreeLBTrainer, NoisyTrainer, first_perturbation  # noqa: E402
from adaptdel.classifiers.transformer_training import TrainingRun  # noqa: E402
from adaptdel.classifiers.transformers import TransformersClassifier  # noqa: E402
from adaptdel.settings import TransformerTrainingSettings  # noqa: E402
from tests.classifiers.test_noisy_copies import copies  # noqa: E402


def unweighted(folder: Path) -> TrainingRun:
    return TrainingRun(folder, class_weight=None)


@pytest.mark.parametrize("kind", [NoisyTrainer, FreeLBTrainer])
def test_a_large_batch_is_read_in_parts(encoder: str, tmp_path: Path, kind: type[NoisyTrainer]) -> None:
    base = TransformersClassifier(encoder)
    one, model = copies(base), base.model
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # its draws would differ
    schedule = TransformerTrainingSettings(adv_steps=2, adv_init=0)
    trainer = kind(base, model, schedule, one, copies(base, purpose=VALIDATION), unweighted(tmp_path))
    one.rows = one.draw(0, [1, 2, 3, 4, 5])
    batch = trainer.collate([one[place] for place in (1, 2, 3, 4, 5)])
    read: list[int] = []
    model.register_forward_pre_hook(lambda module, given, named: read.append(len(named["input_ids"])), with_kwargs=True)

    def step(tokens: int) -> tuple[float, list[Any]]:
        trainer.most_tokens = tokens
        read.clear()
        model.zero_grad()
        loss = float(trainer.step(batch))
        return loss, [parameter.grad.clone() for parameter in model.parameters()]

    length = batch["input_ids"].shape[1]
    passes = 2 if kind is FreeLBTrainer else 1
    loss, gradients = step(5 * length)
    assert read == [5] * passes
    for tokens, parts in ((5 * length - 1, [4, 1]), (2 * length, [2, 2, 1]), (1, [1] * 5)):
        again, found = step(tokens)
        assert read == [rows for rows in parts for _ in range(passes)]
        assert again == pytest.approx(loss, rel=1e-5)
        for one_gradient, other in zip(gradients, found, strict=True):
            torch.testing.assert_close(one_gradient, other, rtol=1e-3, atol=1e-6)

    def forward(module: Any, given: Any, named: Any) -> None:
        if named["input_ids"].numel() > 2 * length:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    model.register_forward_pre_hook(forward, with_kwargs=True)
    with pytest.warns(UserWarning, match="do not fit in memory") as said:
        (again, found), _ = step(10**9), step(int(trainer.most_tokens))  # at first as on a GPU
    assert len(said) == 1
    assert read[-2 * passes :] == [2] * passes + [1] * passes
    assert again == pytest.approx(loss, rel=1e-5)
    for one_gradient, other in zip(gradients, found, strict=True):
        torch.testing.assert_close(one_gradient, other, rtol=1e-3, atol=1e-6)
    trainer.most_tokens = 1
    length = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.step(batch)


def literal(model: Any, batch: dict[str, Any], start: Any, steps: int, length: float, ball: float) -> tuple[Any, float]:
    """Algorithm 1 of Zhu et al., text by text, by autograd on the embeddings: mean gradients and mean loss."""
    table = model.get_input_embeddings().weight
    others = {name: batch[name] for name in ("attention_mask", "token_type_ids", "labels")}
    delta, total, mean = start.clone(), 0.0, [torch.zeros_like(one) for one in model.parameters()]
    state = torch.get_rng_state()
    for _ in range(steps):
        torch.set_rng_state(state)  # the same dropout
        delta.requires_grad_(True)
        loss = model(inputs_embeds=table[batch["input_ids"]] + delta, **others).loss
        *gradients, up = torch.autograd.grad(loss, [*model.parameters(), delta])
        mean = [one + gradient / steps for one, gradient in zip(mean, gradients, strict=True)]
        total += loss.item() / steps
        moved = []
        for text, direction in zip(delta.detach(), up, strict=True):
            step = text + length * direction / direction.norm()
            moved.append(step if not ball or step.norm() <= ball else ball * step / step.norm())
        delta = torch.stack(moved)
    return mean, total


@pytest.mark.parametrize(("steps", "ball"), [(3, 0.0), (2, 0.15), (4, 0.25)])
def test_freelb_is_that_of_the_paper(encoder: str, tmp_path: Path, steps: int, ball: float) -> None:
    schedule = TransformerTrainingSettings(adv_steps=steps, adv_lr=0.1, adv_init=0.2, adv_norm=ball)
    base = TransformersClassifier(encoder)
    one, model = copies(base), base.model.train()
    trainer = FreeLBTrainer(base, model, schedule, one, copies(base, purpose=VALIDATION), unweighted(tmp_path))
    one.rows = one.draw(0, [1, 2, 3, 4])
    batch = trainer.collate([one[place] for place in (1, 2, 3, 4)])
    real = batch["attention_mask"].float()
    assert real.min() == 0  # some padding
    torch.manual_seed(5)
    start = first_perturbation(real, 32, 0.2)
    mean, loss = literal(model, batch, start, steps, 0.1, ball)
    torch.manual_seed(5)
    found = trainer.step(batch)
    assert float(found) == pytest.approx(loss, rel=1e-5)
    for (name, parameter), wanted in zip(model.named_parameters(), mean, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-3, atol=1e-6, msg=name)
    assert not model.get_input_embeddings()._forward_hooks
