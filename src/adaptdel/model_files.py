"""Smoothed classifiers in folders: JSON, safetensors, and a model card. Nothing that is read is executed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adaptdel.classifiers.base import BaseClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.noise import noise_from_dict
from adaptdel.threat import Threat
from adaptdel.units import check_unit, unit_from_dict

Model = Any  # a SmoothedClassifier, whose room is further down

CONFIG = "adaptdel.json"
FORMAT = 1
_PLAIN = ("alpha", "n_select", "n_estimate", "sampling", "bound", "seed", "threshold", "k", "copies")


def save_model(model: Model, path: Path) -> None:
    """Write a model whole or not at all; a folder that holds something else is not touched."""
    base = model._ready()
    kind = _kind(base)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / CONFIG).exists())):
        raise ValueError(f"path must be a new folder, an empty one or a saved model, got {str(path)!r}")
    settings = {
        "format": FORMAT,
        "version": version("adaptdel"),
        "base": kind,
        "fingerprint": base.fingerprint(),
        "noise": model._rule().noise.to_dict(),
        "ops": list(Threat(model.ops).ops),
        "unit": check_unit(model.unit).to_dict(),
        **{name: getattr(model, name) for name in _PLAIN},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        base.save(partial / "base")
        (partial / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        (partial / "README.md").write_text(_card(model, base, settings), encoding="utf-8")
        partial.chmod(0o755)
        old = partial.with_name(partial.name + ".old")
        if path.exists():
            os.replace(path, old)
        os.replace(partial, path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load_model(cls: type[Model], path: Path) -> Model:
    """Read a model, and check that the base classifier is the one that was saved."""
    config = path / CONFIG
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        if settings["format"] != FORMAT:
            raise ValueError(f"{config}: the format must be {FORMAT}, got {settings['format']!r}")
        noise = noise_from_dict(settings["noise"])
        base = _load_base(settings["base"], path / "base")
        model = cls(
            base,
            noise,
            ops=tuple(settings["ops"]),
            unit=unit_from_dict(settings["unit"]),
            **{name: settings[name] for name in _PLAIN},
        )
    except FileNotFoundError:
        raise ValueError(f"path must be a folder that save wrote, got {str(path)!r} without {config.name}") from None
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{config}: not a saved model: {error}") from None
    if base.fingerprint() != settings["fingerprint"]:
        raise ValueError(f"{path / 'base'}: the base classifier is not the one that was saved: its fingerprint differs")
    model.base_, model.noise_ = base, noise
    if base.classes_ is not None:
        import numpy as np

        model.classes_ = np.array(base.classes_)
    return model


def _kind(base: BaseClassifier) -> str:
    if isinstance(base, LinearClassifier):
        return "linear"
    if type(base).__name__ == "TransformersClassifier":
        return "transformers"
    raise ValueError(
        f"base must be a LinearClassifier or a TransformersClassifier to be saved, got {base!r}: "
        "others could only be pickled, which is not safe to load"
    )


def _load_base(kind: str, folder: Path) -> BaseClassifier:
    if kind == "linear":
        return LinearClassifier.load(folder)
    if kind == "transformers":
        from adaptdel.classifiers.transformers import TransformersClassifier

        return TransformersClassifier.load(folder)
    raise ValueError(f"the base of a saved model must be linear or transformers, got {kind!r}")


def _card(model: Model, base: BaseClassifier, settings: dict[str, Any]) -> str:
    classes = ", ".join(map(str, base.classes_ or []))
    return f"""---
library_name: adaptdel
tags: [certified-robustness, randomized-smoothing]
---
# A smoothed classifier

- Classes: {classes}
- Noise: `{model._rule().noise!r}`, on units of kind `{settings["unit"]["kind"]}`
- Base classifier: {settings["base"]}, fingerprint `{settings["fingerprint"][:16]}`
- Written by adaptdel {settings["version"]}

```python
import adaptdel as ad

model = ad.SmoothedClassifier.load("this folder")
certificate = model.certify(["a text"])[0]
print(certificate.label, certificate.radius)  # no attacker with up to that many edits can change the label
```

A certificate holds with probability {1 - model.alpha:g} over the noise that is drawn for the input. It says that the
answer stays the same, not that it is right.
"""
