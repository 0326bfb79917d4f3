"""The files of a linear model: weights in safetensors, everything else in plain JSON, all of it checked when read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as tensors_from_bytes
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.checks import check_choice, check_int
from adaptdel.classifiers.features import Features, HashedFeatures, VocabularyFeatures, token_from_json
from adaptdel.files import parse_object, replacing

WEIGHTS, DESCRIPTION = "linear.safetensors", "linear.json"
VERSION = 1
LARGEST_WEIGHT = 2**20  # a weight is a whole number of at most this size times a power of two
LARGEST_BITS = 28  # 2**28 hashed columns, a gigabyte a score


@dataclass(frozen=True)
class Stored:
    """A linear model as it was read."""

    path: Path
    features: Features
    min_count: int
    classes: list[Any]
    exponent: int
    weights: npt.NDArray[np.int32]
    bias: npt.NDArray[np.int32]
    training: dict[str, Any]
    fingerprint: str


def write_model(folder: Path, description: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.int32]]) -> None:
    """Write both files; each replaces an older one in one step, the description last."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": "adaptdel linear", "version": VERSION, **description}, indent=1, allow_nan=False)
    data = tensors_to_bytes({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    for name, content in ((WEIGHTS, data), (DESCRIPTION, text.encode("ascii") + b"\n")):
        with replacing(folder / name) as file:
            file.write(content)


def read_model(folder: Path) -> Stored:
    """Read both files; ValueError that names the file and what is wrong in it."""
    path = folder / DESCRIPTION
    try:
        values = parse_object(_content(path))
    except ValueError as error:
        if str(error).startswith(f"{path} "):
            raise
        raise ValueError(f"{path} must be a JSON file: {error}") from None
    if values.get("format") != "adaptdel linear" or values.get("version") != VERSION:
        raise ValueError(f"{path} must describe a linear model of adaptdel, version {VERSION}")
    try:
        features = _features(values)
        classes = _labels(values.get("classes"))
        exponent = check_int("exponent", values.get("exponent"), least=-1100, most=1100)
        min_count = check_int("min_count", values.get("min_count"), least=1)
        training, fingerprint = values.get("training"), values.get("fingerprint")
        if not isinstance(training, dict) or not isinstance(fingerprint, str):
            raise ValueError("training must be a dictionary and fingerprint a text")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}: save or copy the model anew") from None
    scores = 1 if len(classes) == 2 else len(classes)
    shapes = {"weights": (features.size + 1, scores), "bias": (scores,)}
    tensors = _tensors(folder / WEIGHTS, shapes)
    weights, bias = tensors["weights"], tensors["bias"]
    return Stored(path, features, min_count, classes, exponent, weights, bias, training, fingerprint)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None


def _features(values: Mapping[str, Any]) -> Features:
    kind = check_choice("features", values.get("features"), ("hash", "vocabulary"))
    lowercase = values.get("lowercase")
    if not isinstance(lowercase, bool):
        raise ValueError(f"lowercase must be true or false, got {lowercase!r}")
    if kind == "hash":
        return HashedFeatures(check_int("bits", values.get("bits"), least=1, most=LARGEST_BITS), lowercase)
    listed = values.get("vocabulary")
    if not isinstance(listed, list):
        raise ValueError("vocabulary must be a list")
    vocabulary = [token_from_json(value) for value in listed]
    if len(set(vocabulary)) != len(vocabulary):
        raise ValueError("vocabulary must not hold anything twice")
    return VocabularyFeatures(vocabulary, lowercase)


def _labels(classes: Any) -> list[Any]:
    if not isinstance(classes, list) or not all(isinstance(label, (str, int, float)) for label in classes):
        raise ValueError("classes must be a list of texts or numbers")
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise ValueError("classes must be two or more different labels")
    return classes


def _tensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[np.int32]]:
    content = _content(path)
    try:
        tensors = tensors_from_bytes(content)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} must be a safetensors file: {reason}: save or copy the model anew") from None
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != np.int32 or tensor.shape != shape:
            got = "none" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"
            raise ValueError(f"{path} must hold {name} as int32 of shape {shape}, got {got}")
        if tensor.size and (tensor.max() > LARGEST_WEIGHT or tensor.min() < -LARGEST_WEIGHT):
            raise ValueError(f"{path} must hold {name} of at most {LARGEST_WEIGHT} in size")
    return tensors
