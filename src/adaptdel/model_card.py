"""The model card: what a saved model is, how it was made and how to certify with it, written by the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptdel.noise import noise_from_dict

SHOWN = 12  # rows of a history that a card shows


def model_card(
    settings: Mapping[str, Any], training: Mapping[str, Any] | None, calibration: Mapping[str, Any] | None
) -> str:
    """The README of a saved model, out of the files beside it."""
    classes = ", ".join(map(str, settings.get("classes") or []))
    title = "A smoothed classifier" if training is None else f"A smoothed classifier, trained with {training['method']}"
    parts = [
        "---\nlibrary_name: adaptdel\ntags: [certified-robustness, randomized-smoothing]\n---",
        f"# {title}\n",
        f"- Classes: {classes}",
        f"- Noise: `{noise_from_dict(settings['noise'])!r}`, on units of kind `{settings['unit']['kind']}`",
        f"- Base classifier: {settings['base']}, fingerprint `{settings['fingerprint'][:16]}`",
        f"- Written by adaptdel {settings['version']}",
    ]
    if training is not None:
        parts.append(_training(training))
    if calibration is not None:
        parts.append(_calibration(calibration))
    parts.append(_use(settings))
    return "\n".join(parts)


def _training(record: Mapping[str, Any]) -> str:
    data, versions = record["data"], record["versions"]
    lines = [
        "\n## Training\n",
        f"- Method: {record['method']}" + (f" at {record['rate']:.4g}" if record.get("rate") is not None else ""),
        f"- Noise while training: `{noise_from_dict(record['noise'])!r}`",
        f"- Data: {data['rows']} examples, {data['mean_length']:.4g} tokens on average; {data['held_out']} held out; "
        f"SHA-256 `{data['digest'][:16]}`",
        f"- Settings: {', '.join(f'{name} {value}' for name, value in record['settings'].items())}",
        f"- Time: {record['seconds']:.4g} s; {', '.join(f'{name} {value}' for name, value in versions.items())}",
    ]
    if record.get("calibrated") is False:
        lines.append("- **Not calibrated yet**: `adaptdel calibrate MODEL --data FILE` finds the rates of AdaptDel+.")
    return "\n".join(lines) + "\n\n" + history_table(record["history"])


def history_table(history: list[dict[str, Any]]) -> str:
    """A history in Markdown; the middle of a long one is left out."""
    if not history:
        return ""
    names = list(history[0])
    rows = ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|" + "---:|" * len(names)]
    shown = history if len(history) <= SHOWN else [*history[: SHOWN // 2], None, *history[-SHOWN // 2 :]]
    for row in shown:
        cells = ["..."] * len(names) if row is None else [_cell(row.get(name)) for name in names]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _calibration(found: Mapping[str, Any]) -> str:
    lines = ["\n## Calibration\n", "The rates were searched for on labelled data; the trace is in `calibration.json`."]
    lines += [f"- {sentence}" for sentence in found.get("warnings", [])]
    return "\n".join(lines)


def _use(settings: Mapping[str, Any]) -> str:
    return f"""
## Use

```sh
adaptdel certify MODEL --data test.csv --out RUN
```

```python
import adaptdel as ad

model = ad.SmoothedClassifier.load("this folder")
certificate = model.certify(["a text"])[0]
print(certificate.label, certificate.radius)  # no attacker with up to that many edits can change the label
```

A certificate holds with probability {1 - settings["alpha"]:g} over the noise that is drawn for the input. It says
that the answer stays the same, not that it is right.
"""
