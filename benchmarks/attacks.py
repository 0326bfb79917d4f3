"""Attacks: how often `adaptdel audit` detects wrong certificates, and how many exact ones are tight.

    python -m benchmarks.attacks audit --out FILE    the power of audits, and their false alarms
    python -m benchmarks.attacks exact DATA... --out FILE    how many exact certificates are tight

The audits are of votes that are drawn from known probabilities, so that many can be simulated; radii are audited with
a real model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import adaptdel as ad
from adaptdel.attacks.adaptive import learn_vocabulary
from adaptdel.attacks.audit import FRESH, Auditor, AuditReport, Claim, ClaimAudit, Violation, check_votes
from adaptdel.certification.sampling import doubling_looks
from adaptdel.core.confidence import Looks, vote_bounds
from adaptdel.settings import AUDIT
from adaptdel.text.data import read_rows

ALPHA = 0.05
SELECTION = 1000
Draw = tuple[tuple[float, ...], int, Looks, list[list[int]]]  # probabilities, class, looks, votes at looks


def honest(shares: tuple[float, ...], looks: Looks, rng: np.random.Generator) -> Draw:
    """Votes on a class that was selected on other votes; the sampling stops once the class has proven a majority."""
    label = int(rng.multinomial(SELECTION, shares).argmax())
    counts, votes = np.zeros(len(shares), dtype=np.int64), []
    for size in looks.sizes:
        counts = counts + rng.multinomial(size - counts.sum(), shares)
        votes.append(counts.tolist())
        if vote_bounds(looks, votes, label)[0] > 0.5:
            break
    return shares, label, looks, votes


def on_the_same_votes(shares: tuple[float, ...], looks: Looks, rng: np.random.Generator) -> Draw:
    """The class that is selected on the votes that bound it."""
    _, _, looks, votes = honest(shares, looks, rng)
    return shares, int(np.argmax(votes[-1])), looks, votes


def at_half(shares: tuple[float, ...], looks: Looks, rng: np.random.Generator) -> Draw:
    """Bounds at alpha = 0.5, said to be at 0.05."""
    shares, label, _, votes = honest(shares, looks, rng)
    return shares, label, Looks(looks.sizes, tuple(level * 10 for level in looks.alphas)), votes


def audited(draws: list[Draw], rng: np.random.Generator) -> AuditReport:
    """The audit of the bounds of certificates, with fresh votes as in `Auditor`."""
    audits = []
    for shares, label, looks, votes in draws:
        p1, p2 = vote_bounds(looks, votes, label)
        total = sum(votes[-1])
        claim = Claim("", (), label, -1, p1, p2, ALPHA, total, votes[-1][label])
        fresh = rng.multinomial(max(AUDIT.verify_votes, FRESH * total), shares)
        check = check_votes(claim, fresh)
        violation = Violation("", "", exact=False) if check.disproved else None
        audits.append(ClaimAudit(ALPHA, -1, violation, votes=check))
    return AuditReport(audits)


def mixed(rng: np.random.Generator) -> tuple[float, ...]:
    """Two classes, as texts have them: many clear ones, some near a tie."""
    p = float(rng.choice([0.5, 0.52, 0.6, 0.8, 0.95, 0.999, 1.0]))
    return p, 1 - p


SCENES: dict[str, tuple[Callable[..., Draw], Callable[[np.random.Generator], tuple[float, ...]]]] = {
    "right, two classes": (honest, mixed),
    "right, ten equal classes": (honest, lambda _: (0.1,) * 10),
    "class selected on the votes that bound it, ten equal classes": (on_the_same_votes, lambda _: (0.1,) * 10),
    "class selected on the votes that bound it, two equal classes": (on_the_same_votes, lambda _: (0.5, 0.5)),
    "class selected on the votes that bound it, two classes": (on_the_same_votes, mixed),
    "bounds at alpha 0.5, two classes": (at_half, mixed),
}


def simulated(repeats: int) -> list[dict[str, Any]]:
    """Rejected audits, of ``repeats``, for each scene, number of votes and number of certificates."""
    rows = []
    for scene, (draw, shares) in SCENES.items():
        for votes in (4000, 20_000):
            plans = {"fixed": Looks.fixed(votes, ALPHA), "adaptive": doubling_looks(125, votes, ALPHA)}
            for sampling, looks in plans.items():
                for certificates in (100, 1000):
                    rng = np.random.default_rng([votes, certificates])
                    rejected = 0
                    for _ in range(repeats):
                        draws = [draw(shares(rng), looks, rng) for _ in range(certificates)]
                        rejected += audited(draws, rng).failed
                    row = {"scene": scene, "sampling": sampling, "votes": votes, "certificates": certificates}
                    rows.append(row | {"audits": repeats, "rejected": rejected})
                    print(json.dumps(rows[-1]), flush=True)
    return rows


def words(batch: list[str]) -> list[str]:
    """A single word decides: certificates are nearly tight."""
    return ["spam" if "buy" in text.split() else "ham" for text in batch]


def radii(repeats: int, certificates: int) -> list[dict[str, Any]]:
    """Rejected audits where every radius is too large by k."""
    rows = []
    vocabulary = [(("buy", "cheap"), "spam"), (("lunch", "noon"), "ham")] * 10
    for votes in (4000, 20_000):
        for more in (0, 1, 2):
            rejected = disproved = 0
            for repeat in range(repeats):
                model = ad.SmoothedClassifier(
                    words, ad.Deletion(ad.FixedRate(0.7)), classes=["ham", "spam"], sampling="fixed",
                    n_select=100, n_estimate=votes, seed=repeat, progress=False,
                )  # fmt: skip
                texts = [" ".join(f"w{repeat}x{n}x{m}" for m in range(30)) for n in range(certificates)]
                certifier = model.certifier()
                claims = [
                    Claim.of("", tuple(text.split()), certificate, radius=certificate.radius + more)
                    for text, certificate in zip(texts, model.certify(texts), strict=True)
                ]
                learnt = learn_vocabulary(certifier, vocabulary)
                report = Auditor(certifier, learnt, replace(AUDIT, seed=repeat + 1))(claims)
                rejected += report.failed
                disproved += len(report.violations)
            row = {"scene": f"radius + {more}, a word decides", "sampling": "fixed", "votes": votes}
            row |= {"certificates": certificates, "audits": repeats, "rejected": rejected, "disproved": disproved}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def exact(files: list[Path], inputs: int) -> list[dict[str, Any]]:
    """Audits of exact certificates of some test texts, for models of 4,000 training texts and each set of operations.

    A file NAME.train.jsonl.gz lies beside NAME.test.jsonl.gz.
    """
    rows = []
    for file in files:
        training, test = (
            [read[n] for n in np.random.default_rng(0).permutation(len(read))[:size]]
            for read, size in (
                (list(read_rows(str(file))), 4000),
                (list(read_rows(str(file).replace(".train.", ".test."))), inputs),
            )
        )
        model = ad.AdditiveClassifier(progress=False)
        model.fit([row.text for row in training], [row.label for row in training])
        for ops in ("edit", "del,ins", "del", "ins", "sub"):
            model.ops = ops
            pairs = zip(test, model.certify([row.text for row in test]), strict=True)
            claims = [Claim.of(row.id, certificate.tokens or (), certificate) for row, certificate in pairs]
            values = Auditor(model.certifier())(claims).to_dict()
            shown = {name: values[name] for name in ("certificates", "violations", "attacked_texts", "tightness")}
            rows.append({"data": file.name.partition(".")[0], "ops": ops, **shown})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    audits = commands.add_parser("audit")
    audits.add_argument("--repeats", type=int, default=40)
    audits.add_argument("--radii", type=int, default=4)
    audits.add_argument("--out", type=Path, required=True)
    tight = commands.add_parser("exact")
    tight.add_argument("data", type=Path, nargs="+")
    tight.add_argument("--inputs", type=int, default=200)
    tight.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "exact":
        rows = exact(arguments.data, arguments.inputs)
    else:
        rows = simulated(arguments.repeats) + radii(arguments.radii, 20)
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
