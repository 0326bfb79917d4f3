"""What the estimators share: folders, the Hugging Face Hub, and the conventions of scikit-learn."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import numpy as np

from adaptdel.classifiers.base import BaseClassifier
from adaptdel.models.model_files import load_model, save_model
from adaptdel.text.units import Tokens, check_unit

try:
    from sklearn.base import BaseEstimator as BaseEstimator
    from sklearn.base import ClassifierMixin as ClassifierMixin
except ImportError:  # the estimators have the same methods without scikit-learn

    class ClassifierMixin:  # type: ignore[no-redef]
        """Stands in where scikit-learn is not installed."""

    class BaseEstimator:  # type: ignore[no-redef]
        """Stands in where scikit-learn is not installed."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """The arguments of the constructor."""
            names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
            return {name: getattr(self, name) for name in names}

        def set_params(self, **params: Any) -> Any:
            """Change arguments of the constructor."""
            for name, value in params.items():
                if name not in self.get_params():
                    raise ValueError(f"{name!r} is not a parameter of {type(self).__name__}")
                setattr(self, name, value)
            return self


class TextEstimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A model of texts: in a folder, which also holds its base classifier, or on the Hugging Face Hub.

    `adaptdel.training`, `adaptdel.calibration` and `adaptdel.training.protection` add records in plain values, as the
    attributes ``training_``, ``calibration_`` and ``protection_``, and ``texts_``: the sorted hashes of the texts that
    they used, by their use.
    """

    kind: ClassVar[str]  # the name of this kind of model in folders
    unit: Any
    classes_: Any  # the labels

    def base_classifier(self) -> BaseClassifier:
        """The base classifier."""
        raise NotImplementedError

    def to_settings(self) -> dict[str, Any]:
        """What a folder holds beside the base classifier, in plain values."""
        raise NotImplementedError

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], base: Any, unit: Any) -> Self:
        """The model from what `to_settings` returned, checked, and its base classifier."""
        raise NotImplementedError

    def answer_plan(self) -> dict[str, Any]:
        """All that `predict` depends on besides the text and the seed: figures of a model hold while it is the same."""
        raise NotImplementedError

    def split(self, X: Any) -> Iterator[Tokens]:
        """The tokens of each input; ValueError that names the input that cannot be split."""
        unit = check_unit(self.unit)
        for number, text in enumerate(listed(X)):
            try:
                yield unit.split(text)
            except ValueError as error:
                raise ValueError(f"{input_name(number, text)}: {error}") from None

    def training_examples(self, X: Any, y: Any) -> tuple[list[Tokens], list[Any]]:
        """The tokens and the label of each input."""
        tokens = list(self.split(X))
        if isinstance(y, (str, bytes)) or not isinstance(y, Iterable):
            raise ValueError(f"y must hold a label for each input, got {y!r:.60}")
        labels = np.asarray(y).tolist() if hasattr(y, "dtype") else list(y)
        if len(tokens) != len(labels):
            raise ValueError(f"y must be of the same length as X, {len(tokens)}, got {len(labels)} labels")
        if not tokens:
            raise ValueError("X must hold at least one input, got none")
        return tokens, labels

    def save(self, path: str | Path) -> None:
        """Write the model to a folder: safetensors, JSON and a model card."""
        save_model(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, **running: Any) -> Self:
        """Read a model that `save` wrote; nothing in the folder is executed.

        ``running`` says where and how a transformer runs: ``device``, ``dtype``, ``batch_tokens`` and ``compile`` of
        `TransformersClassifier`.
        """
        model = load_model(path, running)
        if not isinstance(model, cls):
            raise ValueError(f"{path}: holds a model of the kind {model.kind}: use {type(model).__name__}.load")
        return model

    def changed_plan(self) -> str | None:
        """A sentence if the answers are no longer those whose rate of false positives was proved; else None."""
        known = getattr(self, "protection_", None)
        if known is None or known["plan"] == (plan := self.answer_plan()):
            return None
        changed = [name for name in plan if plan[name] != known["plan"].get(name)]
        shown = ", ".join(f"{name} was {known['plan'].get(name)!r:.40} and is {plan[name]!r:.40}" for name in changed)
        return (
            f"the rate of false positives of {known['label']!s} was proved for other answers ({shown}): nothing is "
            "known about it here; run adaptdel protect on a model with these settings"
        )

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload the folder that `save` writes to the Hugging Face Hub, and return its address.

        The folder holds no text, but hashes of the texts that trained the model. The repository ``repo_id`` is created
        if it does not exist. The token is that of `hf auth login` unless it is given.
        """
        hub = _hub()
        with TemporaryDirectory() as folder:
            self.save(Path(folder) / "model")
            hub.create_repo(repo_id, private=private, token=token, exist_ok=True)
            uploaded = hub.upload_folder(
                repo_id=repo_id,
                folder_path=Path(folder) / "model",
                delete_patterns="base/*",  # of an earlier model
                commit_message=f"Upload {type(self).__name__}",
                token=token,
            )
        return str(getattr(uploaded, "commit_url", uploaded))

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, token: str | None = None) -> Self:
        """Read a model from a folder, or by "owner/name" from the Hugging Face Hub; nothing in it is executed."""
        if Path(name).exists():
            return cls.load(name)
        hub = _hub()
        try:
            folder = hub.snapshot_download(str(name), revision=revision, token=token)
        except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError, OSError) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(f"{name}: neither a folder nor a model that can be downloaded: {reason[0]}") from None
        return cls.load(folder)

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's tags: inputs are texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise ImportError("the Hugging Face Hub needs huggingface_hub: pip install 'adaptdel[hub]'") from None
    return huggingface_hub


def label_array(names: list[Any]) -> Any:
    """Labels as an array that keeps their types."""
    return np.array(names) if len({type(name) for name in names}) <= 1 else np.array(names, dtype=object)


def listed(X: Any) -> list[Any]:
    """The inputs as a list; a single text is refused."""
    if isinstance(X, (str, bytes)):
        raise ValueError(f"X must be a list of inputs, got a single {type(X).__name__}: put it in a list")
    if isinstance(X, Mapping) or hasattr(X, "columns") or not isinstance(X, Iterable):
        raise ValueError(f"X must be a list of inputs, got {type(X).__name__}: give the texts, such as one column")
    return list(X)


def input_name(number: int, text: Any) -> str:
    """What messages call an input."""
    shown = repr(text[:60] if isinstance(text, (str, bytes)) else text)
    return f"input {number} ({shown if len(shown) < 80 else shown[:77] + '...'})"
