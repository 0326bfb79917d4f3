"""Foreign model folders: checked before anything is built from them; whatever libraries raise becomes one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from adaptdel.files import check_regular, read_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
READ_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
# A part of a model that is there several times has at least one stored tensor each time.
COUNTS = re.compile("layer|block|expert|group|stage|depth|repeat|stack")
WIDTHS = re.compile("size|dim|width")
COUNTED_SIZES = ("block_sizes",)  # of Funnel: layers of each block
FEW = 200  # parts that any model may have
SMALL = 2**20  # what any other integer of a configuration may be
NEW_PARAMETERS = 2**24  # that need not be stored: a new head, tables that are computed


class ForeignModelError(ValueError):
    """A model folder cannot be read; the message is one sentence that begins with its name."""


def unreadable(name: str, reason: object) -> ForeignModelError:
    """The error for a model that cannot be read."""
    shown = " ".join(str(reason).split())
    shown = shown if len(shown) <= 200 else shown[:197] + "..."
    return ForeignModelError(f"{name}: the model cannot be read ({shown}): save or copy it again, or give another one")


@contextmanager
def panics_as_errors(name: str) -> Iterator[None]:
    """Turn a panic of Rust code, which derives from BaseException, into a ValueError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise unreadable(name, f"its Rust code panicked: {error}") from None


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn whatever a library raises about damaged files into a `ForeignModelError`; a missing extra stays as it is."""
    try:
        with panics_as_errors(name):
            yield
    except (ForeignModelError, ImportError):
        raise
    except Exception as error:
        text = str(error)
        reason = "its weights do not fit its config.json" if "ignore_mismatched_sizes" in text else text
        raise unreadable(name, reason or type(error).__name__) from None


def local_folder(source: str) -> Path:
    """The folder of a model; one on the hub is downloaded: tokenizer, configuration and safetensors, no code."""
    if Path(source).exists():
        return Path(source)
    from huggingface_hub import snapshot_download

    with reading(source):
        return Path(snapshot_download(source, allow_patterns=list(READ_FILES), ignore_patterns=["*/*"]))


def check_folder(folder: Path) -> None:
    """Raise a `ForeignModelError` unless a folder can hold the model that its config.json describes.

    All files must be regular, the headers of the weights readable, and the model that the configuration describes must
    have about as many parameters as the files hold: it is built without memory to count them.
    """
    import torch
    import transformers

    name = str(folder)
    check_regular(folder)
    with reading(name):
        try:
            config = read_json(folder / CONFIG, "the configuration of a model")
        except FileNotFoundError:
            raise unreadable(name, f"{CONFIG} is missing") from None
        shapes = stored_shapes(folder)
        stored = sum(map(prod, shapes.values()))
        for field, value in _integers(config):
            is_count = field in COUNTED_SIZES or (COUNTS.search(field) and not WIDTHS.search(field))
            if abs(value) > max(*((FEW, len(shapes)) if is_count else (SMALL, stored))) and "theta" not in field:
                raise unreadable(name, f"{field} of {CONFIG} cannot be {value} with so few weights")
        # The model is built on a device that allocates nothing.
        described_by = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        with torch.device("meta"):
            reader: Any = transformers.AutoModelForSequenceClassification
            model = reader.from_config(described_by, trust_remote_code=False)
        described = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
        if described > 2 * stored + NEW_PARAMETERS:
            raise unreadable(name, f"{CONFIG} describes {described} parameters, but its files hold {stored}")


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every stored tensor, from the headers of the safetensors files."""
    from safetensors import safe_open

    names = [WEIGHTS]
    if not (folder / WEIGHTS).exists():
        if not (folder / INDEX).exists():
            raise unreadable(str(folder), f"it has no {WEIGHTS}; weights in other formats are not read")
        files = read_json(folder / INDEX, "an index of weights").get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
            raise unreadable(str(folder), f"{INDEX} has no map of weights")
        names = sorted(set(files.values()))
    shapes: dict[str, tuple[int, ...]] = {}
    for file in names:
        if Path(file).name != file or not (folder / file).is_file():
            raise unreadable(str(folder), f"{INDEX} names {file!r:.60}, which is not a file of the folder")
        with safe_open(folder / file, framework="numpy") as tensors:
            shapes |= {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
    return shapes


def _integers(values: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Every integer in nested values, with the name of its field."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _integers(value, name if key.isdigit() else key)
    elif isinstance(values, list):
        for value in values:
            yield from _integers(value, name)
    elif isinstance(values, int) and not isinstance(values, bool):
        yield name, values


def as_tokenizer(source: Any) -> Any:
    """A loaded tokenizer as it is, or that of a folder or a name on the hub, without running code from it."""
    if not isinstance(source, (str, Path)):
        return source
    import transformers

    folder = local_folder(str(source))
    check_regular(folder)
    with reading(str(folder)):
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if not isinstance(tokenizer.model_max_length, (int, float)):
            raise ValueError(f"model_max_length must be a number, got {tokenizer.model_max_length!r:.60}")
        return tokenizer
