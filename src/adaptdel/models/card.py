"""The model card: the README of a saved model, written from the other files of its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adaptdel.classifiers.vote_margin import LEVEL_FACTOR
from adaptdel.core.noise import noise_from_dict
from adaptdel.measures.class_measures import SHOWN_CLASSES, class_table
from adaptdel.tables import Table, markdown_text, number, percent, text_table

LONGEST_NOISE = 200  # characters of a noise that is shown as code
SHOWN_RECALLS = 10  # classes whose recall a line gives
FRONT_TEXT = (
    "Bound: of the score of a word, in percent of the first. "
    "Measured on held-out examples, with a model that was not trained on them; wrong answers count as radius 0. "
    "`adaptdel calibrate MODEL --max-accuracy-loss X` chooses another bound without training anew."
)


def model_card(
    settings: Mapping[str, Any], training: Mapping[str, Any] | None, calibration: Mapping[str, Any] | None
) -> str:
    """The card of a model, from its settings and the records of its training and calibration."""
    title = f"{settings['kind'].capitalize()} classifier"
    parts = [
        "---\nlibrary_name: adaptdel\ntags: [certified-robustness]\n---",
        f"# {title}" + ("" if training is None else f", trained with {training['method']}") + "\n",
        f"- Classes: {', '.join(markdown_text(str(label)) for label in settings['classes'])}",
        f"- Units: `{settings['unit']['kind']}`",
    ]
    if "noise" in settings:
        parts.append(f"- Noise: {_noise_text(settings['noise'])}")
    if settings.get("threshold") is not None and (settings["kind"] == "smoothed" or settings["threshold"]):
        what = "probability" if settings["kind"] == "smoothed" else "score"
        decided = f"**{markdown_text(str(settings['classes'][1]))}** iff its {what} exceeds {settings['threshold']:.4g}"
        proved = (settings.get("protection") or {}).get("sentence", "").replace("<", "&lt;")
        parts.append(f"- Decision threshold: the answer is {decided}" + (f"; {proved}" if proved else ""))
    parts += [
        f"- Base classifier: {settings['base']}, fingerprint `{settings['fingerprint'][:16]}`",
        f"- Written by adaptdel {settings['version']}",
    ]
    if training is not None:
        parts.append(training_text(training).replace("<", "&lt;"))  # of labels
    if calibration is not None:
        parts.append(calibration_text(calibration).replace("<", "&lt;"))
    if settings.get("front"):
        table = front_table(settings["front"], settings["options"]["point"])
        parts.append(f"\n## Bounds\n\n{FRONT_TEXT}\n\n{table.to_markdown()}")
    parts.append(_use(settings))
    return "\n".join(parts)


def _noise_text(values: Mapping[str, Any]) -> str:
    """The noise as code; for a curve with many knots, what it keeps at a few lengths."""
    noise = noise_from_dict(values)
    if len(repr(noise)) <= LONGEST_NOISE:
        return f"`{noise!r}`"
    kept = ", ".join(f"{n * (1 - noise.share_removed(n)):.3g} of {n}" for n in (10, 30, 100, 300, 1000))
    return f"{type(noise).__name__} that keeps {kept} tokens (the whole curve is in the JSON files)"


def front_table(front: Iterable[Mapping[str, Any]], chosen: int) -> Table:
    """The front of an additive classifier: what each of its bounds gives on held-out examples."""
    rows = [
        [
            percent(LEVEL_FACTOR ** point["point"]) + (" (chosen)" if point["point"] == chosen else ""),
            percent(point["accuracy"]),
            percent(point["balanced_accuracy"]),
            number(point["mean_radius"]),
            number(point["median_radius"], 1),
        ]
        for point in front
    ]
    return text_table(["bound", "accuracy", "balanced accuracy", "mean radius", "median radius"], rows)


def held_out_text(record: Mapping[str, Any]) -> str:
    """The figures by class on held-out examples, from the record of a training; "" if they were not measured."""
    held = record["held_out"]
    if held is None:
        if record["history"] is None or record.get("calibrated") or record["data"]["held_out"]:
            return ""
        return "no held-out examples: how accurate the model is on new texts is unknown"
    chose = "" if record["settings"].get("model") == "linear" else ", which chose the weights that are kept"
    recalls = ", ".join(f"{label} {percent(share)}" for label, share in list(held["recall"].items())[:SHOWN_RECALLS])
    absent = ", ".join(held["absent"][:SHOWN_RECALLS])
    return (
        f"{held['inputs']} held-out examples{chose}, by {held['votes']} votes without a decision threshold: clean "
        f"accuracy {percent(held['accuracy'], 2)}, balanced accuracy {percent(held['balanced_accuracy'], 2)}; recall "
        f"by class: {recalls}" + (f"; unknown, since none is held out: {absent}" if absent else "")
    )


def training_text(record: Mapping[str, Any]) -> str:
    """What the card says about the training."""
    data, versions = record["data"], record["versions"]
    lines = [
        "\n## Training\n",
        f"- Method: {record['method']}" + (f" at {record['rate']:.4g}" if record["rate"] is not None else ""),
        f"- Data: {data['rows']} examples, {data['mean_length']:.4g} tokens on average; {data['held_out']} held out; "
        f"SHA-256 `{data['digest'][:16]}`",
        f"- Settings: {', '.join(f'{name} {value}' for name, value in record['settings'].items() if value != '')}",
        f"- Time: {record['seconds']:.4g} s; {', '.join(f'{name} {value}' for name, value in versions.items())}",
    ]
    if record["noise"] is not None:
        lines.insert(2, f"- Noise while training: {_noise_text(record['noise'])}")
    lines += [f"- Measured: {text}" for text in [held_out_text(record)] if text]
    lines += [f"- **Warning**: {sentence}" for sentence in record["warnings"]]
    if record.get("calibrated") is False:
        lines.append("- **Not calibrated yet**: `adaptdel calibrate MODEL --data FILE` finds the rates of AdaptDel+.")
    return "\n".join(lines)


def calibration_text(record: Mapping[str, Any]) -> str:
    """What the card says about the calibration."""
    lines = [
        "\n## Calibration\n",
        "The rates were searched for on labelled data; the trace is in `calibration.json`. Its figures are those of "
        "the data that the rates were chosen on, and may be optimistic: certify other data.",
    ]
    lines += [f"- **Warning**: {sentence}" for sentence in record["warnings"]]
    if rows := record.get("classes"):
        lines += ["", "By class, under the chosen rate:", "", class_table(rows[:SHOWN_CLASSES]).to_markdown()]
    return "\n".join(lines)


def _use(settings: Mapping[str, Any]) -> str:
    if "alpha" in settings:
        holds = f"with probability {1 - settings['alpha']:g} over the noise that is drawn for the input"
    else:
        holds = "always: nothing is drawn at random"
    return f"""
## Use

```sh
adaptdel certify MODEL --data test.csv --out RUN
```

```python
from adaptdel.models import load

certificate = load("this folder").certify(["a text"])[0]
print(certificate.label, certificate.radius)  # no attacker with up to so many edits can change the label; -1: none
```

A certificate holds {holds}. It says that the answer stays the same, not that it is right.
"""
