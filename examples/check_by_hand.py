"""Check an exact run without adaptdel: ``python check_by_hand.py RUN``; the status is 1 if a row does not hold.

Answers, radii, radii with any text before and after, and the numbers of positions where any text may be inserted follow
from integers alone: see adaptdel.core.margins and adaptdel.core.segment. Radii in characters are not derived.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq

MOVES = {"del": (1, 0, False), "ins": (0, 1, False), "sub": (1, 1, False)}  # tokens out, tokens in, whether any text
ANY_TEXT = (1, 0, True)  # in the middle of a word, which is lost


def sum_radius(scores, offsets, reach, answer, ops, padding, long):
    """The most edits after which the answer has the largest sum; a written token adds at most reach to a rival."""
    rivals = [c for c in range(len(offsets)) if c != answer]
    if padding or (long and "ins" in ops):
        if any(reach[rival] > 0 for rival in rivals):  # enough added text outvotes every sum
            return -1 if padding else min(0, sum_radius(scores, offsets, reach, answer, ops, False, False))
        ops = {*ops, "sub", "del"}  # words that text is glued to are lost
        return max(-1, sum_radius(scores, offsets, reach, answer, ops, False, False) - 2 * padding)
    most = max(2**16, 4 * len(scores)) if "ins" in ops else len(scores)
    for rival in rivals:
        leads = [row[answer] - row[rival] for row in scores]
        slack = offsets[answer] - offsets[rival] + sum(leads) - (rival < answer)  # the lower class wins a tie
        if slack < 0:
            return -1
        costs = [max("del" in ops and lead, "sub" in ops and lead + reach[rival]) for lead in leads]
        inserted, edits = max(reach[rival], 0) if "ins" in ops else 0, 0
        costs = sorted(cost for cost in costs if cost > inserted)
        while costs and slack >= costs[-1]:
            slack, edits = slack - costs.pop(), edits + 1
        most = min(most, edits if costs else edits + slack // inserted if inserted else most)
    return most


def segment_radius(gains, threshold, written, moves, most, is_flagged=True):
    """The most edits after which the best run of tokens is still above the threshold, or still is not."""
    most, edits, old = min(most, max(1, 2**24 // max(1, len(gains)))), 0, None
    while True:
        row = []  # the worst running sum behind each number of tokens; None: a run is above the threshold already
        for n in range(len(gains) + 1):
            found = [0] if n == 0 else [] if row[-1] is None else [max(row[-1], 0) + gains[n - 1]]
            for tokens_out, tokens_in, is_any in moves if old else ():
                if n >= tokens_out and (value := old[n - tokens_out]) is not None:
                    for _ in range(tokens_in):
                        value = max(value, 0) + written
                    found.append(min(value, 0) if is_any else value)
            row.append(min((x for x in found if x <= threshold), default=None) if is_flagged else max(found, default=0))
        if row[-1] is not None if is_flagged else max(row) > threshold:
            return edits - 1
        if edits == most or row == old:
            return most
        old, edits = row, edits + 1


def derive(scores, offsets, reach, rule, ops, padding, long):
    """The answer, as a class number, its radius, and the number of positions."""
    length, reach_of_sum, own = len(scores), list(reach), rule and rule["label"]
    gains = rule and [each[own] - each[1 - own] - rule["segment_drift"] for each in scores]
    drift, least = (rule["drift"], rule["segment"]) if rule else (0, None)
    scores = [[score - drift * (c == own) for c, score in enumerate(each)] for each in scores]
    totals = [offset + sum(each[c] for each in scores) for c, offset in enumerate(offsets)]
    is_flagged = least is not None and segment_radius(gains, least, 0, (), 0) == 0
    answer = own if is_flagged else totals.index(max(totals))
    reach_of_sum[1 - answer] += drift if answer == own else -drift  # of two classes; 0 without a filter
    radius = sum_radius(scores, offsets, reach_of_sum, answer, ops, padding, long)
    moves = [ANY_TEXT if op == "ins" and long else MOVES[op] for op in ops]
    most, inner = max(2**16, 4 * length) if "ins" in ops else length, gains and gains[1:-1]
    if is_flagged:
        written = -reach[1 - own] - rule["segment_drift"]
        radius = max(radius, segment_radius(inner if padding else gains, least, written, moves, most))
    elif least is not None and answer != own:
        written = max(0, reach[own] - rule["segment_drift"])
        if written and (padding or ANY_TEXT in moves):  # what is written may be flagged by itself
            return answer, -1 if padding else min(radius, 0), -1
        radius = min(radius, segment_radius(gains, least, written, moves, most, is_flagged=False))
    return answer, radius, segment_radius(inner, least, 0, [ANY_TEXT], 2**24) if is_flagged else -1


folder, wrong = Path(sys.argv[1]), 0
known: dict[object, object] = {}  # offsets and reach by answer, which all rows share
manifest = json.loads((folder / "manifest.json").read_bytes())
plan, labels, threat = manifest["plan"], manifest["classes"], manifest["plan"]["threat"]
assert (plan["kind"], plan["ngram"]) == ("scores", 1), "not an exact run of single words"
for row in pq.read_table(folder / "certificates.parquet").to_pylist():
    if row["problem"] is None:
        given = row["scores"], row["offsets"], row["reach"], plan["filter"], threat["ops"]
        answer, *radii = derive(*given, threat["padding"], threat["long_insertions"])
        radii.append(derive(*given, True, threat["long_insertions"])[1])
        most = [max(each[c] - each[answer] for each in [[0] * len(labels), *row["scores"]]) for c in range(len(labels))]
        holds = known.setdefault(answer, given[1:3]) == given[1:3] and all(map(int.__le__, most, row["reach"]))
        named = row["answer"] in (labels[answer], json.dumps(labels[answer])) and len(row["scores"]) == row["length"]
        if not holds or not named or radii != [row[name] for name in ("radius", "positions", "padded_radius")]:
            print(f"row {row['row']} does not hold: the answer {labels[answer]} with {radii} follows")
            wrong += 1
sys.exit(f"{wrong} rows do not hold" if wrong else 0)
