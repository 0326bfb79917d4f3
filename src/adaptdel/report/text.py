"""The sentences of a report: the summary, notes for the reader, definitions, and certificates in words."""

from __future__ import annotations

from collections.abc import Sequence

from adaptdel.certification.certificate import Certificate
from adaptdel.core.cardinality import ROBERTA_VOCABULARY
from adaptdel.measures.class_measures import ADVICE, missed_sentence
from adaptdel.measures.summary import CERTIFIED_ACCURACY, CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.report.comparison import Difference, Differences, is_compared_by_sample, scales_to_all
from adaptdel.report.entries import Entry
from adaptdel.tables import number, percent, signed

_NAMED_CLASSES = 4
_RECALLS = 6  # classes whose recall the summary gives
_NAMED_RUNS = 3  # other runs that the summary compares
TOKENS = {"word": "word", "char": "character", "byte": "byte", "chunk": "chunk", "labelled": "chunk"}
_VERBS = {"del": "deletes", "ins": "inserts", "sub": "substitutes"}
_NOUNS = {"del": "deletions", "ins": "insertions", "sub": "substitutions"}


def counted_votes(certificate: Certificate) -> tuple[int, ...]:
    """The votes per class that the certificate is derived from; enumerated copies if nothing was sampled."""
    if certificate.exact is not None:
        return tuple(map(sum, certificate.exact))
    return certificate.votes[-1] if certificate.votes else certificate.selection


def top_votes(certificate: Certificate) -> list[tuple[str, float, int]]:
    """The answer and its strongest rivals: label, share of the votes, number of votes."""
    counts, answer = counted_votes(certificate), certificate.answer
    total = max(sum(counts), 1)
    rivals = sorted((place for place in range(len(counts)) if place != answer), key=lambda place: -counts[place])
    places = [answer, *rivals[: _NAMED_CLASSES - 1]] if counts else []
    return [(str(certificate.classes[place]), counts[place] / total, counts[place]) for place in places]


def answer_share(certificate: Certificate) -> float:
    """The share of the votes for the answer."""
    return top_votes(certificate)[0][1] if top_votes(certificate) else 0.0


def vote_words(certificate: Certificate) -> str:
    """The votes in words."""
    counts = counted_votes(certificate)
    parts = ", ".join(f"{votes:,} for {label}" for label, _, votes in top_votes(certificate))
    more = len(counts) - _NAMED_CLASSES
    others = f" and {more} more classes" if more > 0 else ""
    if certificate.exact is not None:
        copies = "The only possible copy" if sum(counts) == 1 else f"All {sum(counts):,} possible copies"
        return f"{copies}: {parts}{others}"
    return f"{sum(counts):,} votes: {parts}{others}; {sum(certificate.selection):,} more votes selected the answer"


def radius_words(certificate: Certificate) -> str:
    """The certified radius in words."""
    if certificate.abstained:
        return "abstained: the votes do not determine the answer"
    if certificate.radius == 0:
        return "radius 0: one edit might change the answer"
    edits = "1 edit" if certificate.radius == 1 else f"up to {certificate.radius:,} edits"
    covers = ", and this covers every text of its length" if certificate.covers_every_text else ""
    return f"radius {certificate.radius:,}: {edits} cannot change the answer{covers}"


def bound_words(certificate: Certificate) -> str:
    """The bounds on the probabilities, and the noise, in words."""
    p1, p2 = certificate.bounds
    rival = "" if certificate.is_binary else f", of any other class at most {p2:.4f}"
    share, length = certificate.noise.share_removed(certificate.length), certificate.length
    if not certificate.noise.changes_inputs:
        noise = "No noise"
    elif certificate.noise.masks_tokens:
        noise = f"{round(share * length):,} of {length:,} tokens masked"
    else:
        noise = f"{100 * share:.3g}% of tokens deleted, {length * (1 - share):.3g} kept on average"
    return f"Probability of the answer at least {p1:.4f}{rival}. {noise}."


def token(entry: Entry) -> str:
    """The name of the run's tokens."""
    return TOKENS.get((entry.run.manifest["unit"] or {}).get("kind", ""), "token")


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a list in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def plural(count: float, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "edit"), plural(2.5, "edit")
    ('1 edit', '2.5 edits')
    """
    return f"{count:,g} {noun}" + ("" if count == 1 else "s")


def attacker(entry: Entry) -> str:
    """The attacker of the run's certificates."""
    return f"an attacker who {listed([_VERBS[op] for op in entry.ops], 'or')} {token(entry)}s"


def summary(entries: Sequence[Entry], compared: Differences, baseline: Entry) -> list[str]:
    """The results of the best run in a short paragraph, then its details and the other runs, a point for each."""
    best = leading(entries)
    if best.is_constant and best.outcomes.labelled:
        return [" ".join(_nothing_to_lead(entries))]
    if not best.is_smoothed and any(entry.is_smoothed for entry in entries):
        return [*_only_without_noise(best), _balance(best)]
    return [*filter(None, [*_lead(best), *_others(compared, entries, baseline)])]


def leading(entries: Sequence[Entry]) -> Entry:
    """The run that the summary describes.

    A run that tells the classes apart comes before one that does not, and one with noise before one without. Of these:
    the attacker with the most operations, then the largest class-balanced mean radius.
    """

    def order(entry: Entry) -> tuple[bool, bool, bool, bool, int, float]:
        m, constant = entry.measures, entry.is_constant and entry.outcomes.labelled
        radius = m.class_balanced_mean_radius if entry.outcomes.labelled else m.mean_radius
        missed = bool(entry.classes.missed)
        return (
            m.inputs > 0,
            not constant,
            entry.is_smoothed,
            not missed,
            len(entry.ops),
            radius if radius == radius else 0.0,
        )

    return max(entries, key=order)


def default_baseline(entries: Sequence[Entry]) -> Entry:
    """The first run with noise that tells the classes apart; without one, the first with noise, or the first."""
    return min(entries, key=lambda entry: (not entry.is_smoothed, entry.is_constant, entry.number))


def _nothing_to_lead(entries: Sequence[Entry]) -> list[str]:
    """What to say if every run gives one answer; the notes say which, and what to do."""
    who = "This run does not tell the classes apart" if len(entries) == 1 else "No run tells the classes apart"
    return [
        f"{who}: (almost) all inputs get one answer, although their labels differ.",
        "The accuracy is that of a fixed answer, and the radii belong to an answer that hardly depends on the text: "
        "they are no sign of robustness.",
    ]


def _only_without_noise(entry: Entry) -> list[str]:
    """What to say if every run with noise gives one answer, and one without noise does not."""
    m = entry.measures
    return [
        "No run with noise tells the classes apart: each gives (almost) all inputs one answer, and its radii are no "
        f"sign of robustness. Without noise, nothing is certified: {entry.name} has a clean accuracy of "
        f"{percent(m.clean_accuracy)} on {plural(m.inputs, 'input')}."
    ]


def _lead(entry: Entry) -> list[str]:
    m = entry.measures
    if not m.inputs:
        return [f"{entry.name} holds no certified inputs."]
    size = f"{plural(m.inputs, 'input')} with a median length of {plural(round(m.median_length), token(entry))}"
    radius, abstentions = f"{MEAN_RADIUS}: {number(m.mean_radius)}", f"abstains on {plural(m.abstained, 'input')}"
    if entry.outcomes.labelled:
        accuracies = (
            f"{CLEAN_ACCURACY}: {percent(m.clean_accuracy)}, {CERTIFIED_ACCURACY}: {percent(m.certified_accuracy)}"
        )
        start = f"{entry.name} on {size}: {accuracies}, {radius}. {_certified(entry)}"
        outcome = f"The classifier {abstentions} and gives a wrong answer for {m.wrong:,}. {_confidence(entry)}"
        return [start, _missed(entry), _protection(entry), _balance(entry), outcome.strip()]
    start = f"{entry.name} on {size}: {radius}. The data has no labels, so the accuracies are unknown."
    outcome = f"The classifier {abstentions}. {_confidence(entry)}"
    return [f"{start} {_certified(entry)}", _protection(entry), outcome.strip()]


def _missed(entry: Entry) -> str:
    """The classes to which the accuracy and the radii do not apply."""
    missed = entry.classes.missed
    return f"{missed_sentence(missed, 'It')}: its accuracy and its radii are those of other classes." if missed else ""


def _protection(entry: Entry) -> str:
    """What the decision threshold of a run does for the class that it protects."""
    own = [each for each in entry.classes.classes if str(each.label) == entry.protects and each.inputs]
    if not own:
        return ""
    others = sum(each.inputs for each in entry.classes.classes) - own[0].inputs
    wrong = own[0].answers - round(own[0].recall * own[0].inputs)
    return (
        f"It protects {_named(own[0].label)}: {percent(own[0].recall)} of its inputs get this answer, "
        f"{percent(own[0].certified_recall[1])} whatever single edit an attacker makes, with a mean radius of "
        f"{number(own[0].mean_radius)}. Of {plural(others, 'other input')}, {wrong:,} get it too (false positives)."
    )


def _balance(entry: Entry) -> str:
    """The measures in which every class counts the same, and the recall of each class."""
    m, classes = entry.measures, [each for each in entry.classes.classes if each.inputs]
    recalls = ", ".join(f"{_named(each.label)}: {percent(each.recall)}" for each in classes[:_RECALLS])
    more = f" and {len(classes) - _RECALLS} more classes" if len(classes) > _RECALLS else ""
    return (
        f"With every class counting the same, the accuracy is {percent(m.balanced_accuracy)} and the mean radius "
        f"{number(m.class_balanced_mean_radius)}. Recall by class: {recalls}{more}."
    )


def _certified(entry: Entry) -> str:
    m = entry.measures
    answers = "correct answer" if entry.outcomes.labelled else "answer"
    if m.certified + m.certified_zero == 0:
        return f"No {answers} is certified."
    if m.certified == 0:
        return f"All certified {answers}s have radius 0: a single edit might change them."
    return (
        f"For {percent(m.certified / m.inputs)} of the inputs the answer is "
        f"{'correct and ' if entry.outcomes.labelled else ''}certified against at least one edit by {attacker(entry)}"
        f"{_certified_by_class(entry)}; the median radius of the certified {answers}s is {m.median_certified_radius:g}."
    )


def _named(label: object) -> str:
    """A label in a list of figures; a number alone would look like one of them."""
    return f"class {label}" if isinstance(label, (int, float)) else str(label)


def _certified_by_class(entry: Entry) -> str:
    """The certified recall at radius 1 of each class, for few classes."""
    classes = [each for each in entry.classes.classes if each.inputs]
    if not 1 < len(classes) <= _RECALLS:
        return ""
    return f" ({', '.join(f'{_named(each.label)}: {percent(each.certified_recall[1])}' for each in classes)})"


def _confidence(entry: Entry) -> str:
    alpha = entry.run.manifest.get("alpha")
    return f"Each certificate holds with confidence {100 * (1 - alpha):g}%." if alpha else ""


def _others(compared: Differences, entries: Sequence[Entry], baseline: Entry) -> list[str]:
    """The mean radii of the other runs relative to the baseline, where they have common inputs."""
    if baseline.is_constant or not baseline.is_smoothed:
        return []
    threshold = baseline.run.manifest.get("threshold")  # at another one, radii are those of another decision
    noisy = [entry for entry in entries if entry.is_smoothed and not entry.is_constant]
    noisy = [entry for entry in noisy if entry.run.manifest.get("threshold") == threshold]
    common = [entry for entry in noisy if compared.get(entry.name, (0, {}))[0]]
    if not common:
        return []
    parts = [_relative(entry, baseline, compared[entry.name][1]["mean_radius"]) for entry in common[:_NAMED_RUNS]]
    start = f"On the same inputs, the {MEAN_RADIUS} of {baseline.name} is {number(baseline.measures.mean_radius)}"
    more = len(common) - _NAMED_RUNS
    return [f"{start}; {listed(parts)}.", *([f"The tables compare {plural(more, 'more run')}."] if more > 0 else [])]


def _relative(entry: Entry, baseline: Entry, radius: Difference) -> str:
    name = f"that of {entry.name}"
    if set(entry.ops) < set(baseline.ops):
        name += f", against {listed([_NOUNS[op] for op in entry.ops])} only,"
    if signed(radius.value) == "0.00":
        return f"{name} is the same"
    interval = f" (95% interval {signed(radius.low)} to {signed(radius.high)})" if radius.low == radius.low else ""
    return f"{name} is {number(abs(radius.value))} {'larger' if radius.value > 0 else 'smaller'}{interval}"


def notes(entries: Sequence[Entry], compared: Differences, baseline: Entry) -> list[str]:
    """What a reader has to know before comparing the numbers, with the warnings."""
    return _warnings(entries) + comparison_notes(entries, compared, baseline)


def comparison_notes(entries: Sequence[Entry], compared: Differences, baseline: Entry) -> list[str]:
    """Unfinished runs, inputs that are left out, and settings that make runs incomparable."""
    sentences = []
    for entry in entries:
        measured, name = entry.outcomes, entry.name
        if not entry.run.finished:
            certified = len(measured) + measured.unlabelled
            sentences.append(f"{name} is not finished: the report shows the {certified:,} inputs certified so far.")
        if entry.inputs.is_sampled:
            sentences.append(
                f"{name} is large: its measures and curves count all {len(measured):,} inputs; the inputs that are "
                f"shown, and detection under attack, are drawn from a random sample of {len(entry.rows):,}."
            )
        if measured.problems:
            sentences.append(f"{name}: {plural(measured.problems, 'row')} could not be certified and are left out.")
        if measured.unlabelled:
            sentences.append(f"{name}: {plural(measured.unlabelled, 'row')} without a label are left out.")
        if not measured.labelled:
            rule = "every answer counts as correct unless the classifier abstains"
            sentences.append(f"{name} has no labels: {rule}. It is not compared with runs that have labels.")
        common = compared.get(name, (len(measured), {}))[0]
        alike = measured.labelled == baseline.outcomes.labelled
        if alike and not common:
            sentences.append(f"{name} has no input in common with {baseline.name}: they cannot be compared.")
        elif entry is not baseline and scales_to_all(entry, baseline):
            sentences.append(
                f"{name} and {baseline.name} are compared on all {plural(common, 'input')}; the intervals are those of "
                "a random sample, scaled to this number."
            )
        elif entry is not baseline and is_compared_by_sample(entry, baseline):
            sentences.append(
                f"{name} and {baseline.name} hold different inputs: they are compared on {plural(common, 'input')} "
                "drawn at random from those that both hold."
            )
        elif alike and common < max(len(measured), len(baseline.outcomes)):
            sentences.append(
                f"{name} has {plural(common, 'input')} in common with {baseline.name}; the differences are those on "
                "these inputs."
            )
    return sentences + _same_models(entries) + _different_settings(entries)


def _same_models(entries: Sequence[Entry]) -> list[str]:
    """Runs of one model under one noise, as if calibration chose the rate of another method."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        manifest = entry.run.manifest
        if manifest.get("model_hash"):
            names.setdefault(repr((manifest["model_hash"], manifest["noise"], entry.rule)), []).append(entry.name)
    return [
        f"{listed(same)} are the same model with the same noise: calibration chose the rate of an uncalibrated method, "
        "or the runs repeat each other."
        for same in names.values()
        if len(same) > 1
    ]


def _warnings(entries: Sequence[Entry]) -> list[str]:
    """Constant answers, missed classes, and certificates that cover every text of their length."""
    sentences, advise = [], False
    for entry in entries:
        warnings = entry.classes.warnings(entry.name, advice=False)
        if len(warnings) == 1:
            sentences.append(f"{warnings[0][0].upper()}{warnings[0][1:]}.")
        elif warnings:
            sentences.append(f"{entry.name}: {'; '.join(entry.classes.warnings('it', advice=False))}.")
        advise = advise or bool(warnings)
    if advise:
        sentences.append(f"What to do about such a class: {ADVICE}.")
    covering = [
        f"{entry.measures.covering:,} of {entry.measures.inputs:,} ({entry.name})"
        for entry in entries
        if entry.measures.covering
    ]
    if covering:
        sentences.append(
            f"Certificates that cover every text of their length: {listed(covering)}. There the answer provably does "
            "not depend on the words: the classifier reads too little of such short texts to tell them apart."
        )
    return sentences


def _different_settings(entries: Sequence[Entry]) -> list[str]:
    sentences = []
    attackers: dict[tuple[str, ...], list[str]] = {}
    for entry in entries:
        attackers.setdefault(entry.ops, []).append(entry.name)
    if len(attackers) > 1:
        groups = "; ".join(
            f"{listed([_NOUNS[op] for op in ops])} for {listed(names)}" for ops, names in attackers.items()
        )
        sentences.append(f"The runs certify against different attackers ({groups}): their radii are not comparable.")
    if len({str(entry.run.manifest.get("threshold")) for entry in entries}) > 1:
        own = [entry.name for entry in entries if entry.run.manifest.get("threshold") is not None]
        verb = "decides" if len(own) == 1 else "decide"
        rules = "a threshold, and other runs differently" if len(own) < len(entries) else "different thresholds"
        sentences.append(
            f"{listed(own)} {verb} by {rules}: their radii are not those of the same decision. Compare the radii of "
            "the protected class, and the false positives."
        )
    for key, noun in (("alpha", "error levels"), ("bound", "bounds"), ("unit", "units")):
        values = {str(entry.run.manifest.get(key)) for entry in entries}
        if len(values) > 1:
            sentences.append(f"The runs have different {noun} ({listed(sorted(values))}).")
    return sentences


def definitions() -> list[tuple[str, str]]:
    """The terms of a report and their meaning."""
    return [
        ("Certified radius",
         "The number of edits that provably cannot change the answer: no attacker who makes up to this many edits, "
         "anywhere in the input, changes it. A radius says nothing about whether the answer is correct."),
        ("Clean accuracy",
         "The share of inputs whose predicted label is correct. An abstention counts by its predicted label. This is "
         "the accuracy without any robustness guarantee."),
        ("Certified accuracy",
         "The share of inputs whose answer is correct and certified at a radius, or for a region of a size. "
         "Abstentions count as wrong, so at radius 0 it is at most the clean accuracy."),
        ("Mean certified radius",
         "The mean radius over all inputs. Wrong answers and abstentions count as 0, and so they do in medians and "
         "quartiles of the size. Capped at the length: no radius counts for more than the number of tokens of its "
         "input."),
        ("Recall and precision of a class",
         "Recall: the share of the inputs of the class that get it as the answer. Precision: the share of the inputs "
         "with this answer that belong to the class. Certified recall at a radius: the share of the inputs of the "
         "class that are correct and certified at this radius."),
        ("Balanced",
         "The mean over the classes: balanced accuracy of the recall, class-balanced mean radius of the mean radius. A "
         "rare class counts as much as a frequent one."),
        ("Constant answer",
         "(Almost) all inputs get one answer although their labels differ: other answers are at most a tenth as many "
         "as other labels, of which there are at least five, or one for at least eight. Accuracy and radii then say "
         "nothing about the other classes. A class that is as rarely recognised or certified is named too."),
        ("Covers every text of its length",
         "The radius is at least the number of tokens, so that substitutions lead to any text of this length: the "
         "certificate proves that the answer does not depend on the words."),
        ("Abstained",
         "The votes do not determine the answer of the smoothed classifier with the required confidence."),
        ("Size of the certified region",
         "The number of inputs within the radius, as a power of ten, for a vocabulary of "
         f"{ROBERTA_VOCABULARY:,} tokens. It makes different attackers comparable. For edits it is a lower bound."),
        ("Wasserstein",
         "The distance between the distributions of radius and length, each scaled to mean 0 and standard deviation 1. "
         "Near 0, the radius grows in proportion to the length."),
        ("Intervals",
         "95% intervals of the paired bootstrap: how much the difference varies with the choice of the inputs. If an "
         "interval excludes 0, the difference is unlikely to be due to this choice."),
    ]  # fmt: skip
