// The number of edits between two sequences of tokens, and the edits themselves.
//
// An attacker who may delete, insert or substitute tokens (or some of these) needs a least number of edits to turn one
// text into the other. For all three operations this is the Levenshtein distance, for deletions and insertions it
// follows from the longest common subsequence, for substitutions it is the Hamming distance.

export const EVERY_OPERATION = ["del", "ins", "sub"];

const MOST_CELLS = 60e6; // about half a second and 60 MB
const FAR = 1e9;
const [KEEP, SUB, DEL, INS] = [0, 1, 2, 3];
const NAMES = ["keep", "sub", "del", "ins"];

/**
 * The least number of edits of `ops` that turn `a` into `b`.
 *
 * Returns { distance, steps }. `distance` is Infinity if these operations cannot turn one into the other. If the texts
 * are so long and so different that counting would take too long, `distance` is null and `atLeast` bounds it from below.
 * `steps` is a list of { kind: "keep" | "del" | "ins" | "sub", from: [tokens of a], to: [tokens of b] } in order, where
 * neighbours of one kind are joined; null without a finite distance.
 */
export function align(a, b, ops = EVERY_OPERATION, mostCells = MOST_CELLS) {
  const [deletes, inserts, substitutes] = EVERY_OPERATION.map((name) => ops.includes(name));
  if ((!deletes && b.length < a.length) || (!inserts && b.length > a.length)) return { distance: Infinity, steps: null };
  // An optimal alignment keeps equal tokens at the start and at the end, whatever the operations.
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const [from, to] = [a.slice(head, a.length - tail), b.slice(head, b.length - tail)];
  const middle = between(from, to, { deletes, inserts, substitutes }, mostCells);
  if (!middle.codes) return { distance: middle.distance, atLeast: middle.atLeast, steps: null };
  const codes = new Uint8Array(head + middle.codes.length + tail); // zeros: kept
  codes.set(middle.codes, head);
  return { distance: middle.distance, steps: joined(a, b, codes) };
}

function between(a, b, allowed, mostCells) {
  const delta = b.length - a.length;
  let least = Math.max(Math.abs(delta), a.length + b.length > 0 ? 1 : 0); // equal ends were cut off
  // Without insertions (or deletions) every path stays between two diagonals, and one pass decides.
  const fixed = !allowed.deletes || !allowed.inserts;
  for (let limit = Math.max(least, 32); ; limit *= 2) {
    const low = Math.max(fixed ? Math.min(delta, 0) : Math.ceil((delta - limit) / 2), -a.length);
    const high = Math.min(fixed ? Math.max(delta, 0) : Math.floor((delta + limit) / 2), b.length);
    if ((a.length + 1) * (high - low + 1) > mostCells) return { distance: null, atLeast: least };
    const { distance, codes } = band(a, b, low, high, allowed);
    if (distance >= FAR && fixed) return { distance: Infinity, codes: null };
    if (distance <= limit || fixed) return { distance, codes };
    least = limit + 1; // every path that is at most this long was tried
  }
}

/**
 * Dynamic programming over the diagonals low..high, where the diagonal of (i tokens of a, j tokens of b) is j - i.
 *
 * A path of cost at most `limit` stays on the diagonals from (delta - limit) / 2 to (delta + limit) / 2.
 */
function band(a, b, low, high, { deletes, inserts, substitutes }) {
  const width = high - low + 1;
  const cost = new Int32Array(width + 1).fill(FAR);
  const moves = new Uint8Array((a.length + 1) * width);
  for (let i = 0; i <= a.length; i += 1) {
    const row = i * width;
    const first = Math.max(low, -i) - low;
    const last = Math.min(high, b.length - i) - low;
    if (first > 0) cost[first - 1] = FAR;
    for (let place = first; place <= last; place += 1) {
      const j = i + place + low;
      if (i > 0 && j > 0 && a[i - 1] === b[j - 1]) continue; // the cost on the diagonal stays: kept
      let best = FAR;
      let move = SUB;
      if (i > 0 && j > 0 && substitutes) best = cost[place] + 1;
      if (i > 0 && deletes && cost[place + 1] + 1 < best) {
        best = cost[place + 1] + 1;
        move = DEL;
      }
      if (j > 0 && inserts && place > first && cost[place - 1] + 1 < best) {
        best = cost[place - 1] + 1;
        move = INS;
      }
      if (i === 0 && j === 0) best = 0;
      cost[place] = Math.min(best, FAR);
      moves[row + place] = move;
    }
    for (let place = last + 1; place <= width; place += 1) cost[place] = FAR;
  }
  const distance = cost[b.length - a.length - low];
  if (distance >= FAR) return { distance, codes: null };
  const codes = [];
  let [i, j] = [a.length, b.length];
  while (i > 0 || j > 0) {
    const move = moves[i * width + (j - i - low)];
    codes.push(move);
    if (move !== INS) i -= 1;
    if (move !== DEL) j -= 1;
  }
  return { distance, codes: Uint8Array.from(codes.reverse()) };
}

function joined(a, b, codes) {
  const steps = [];
  let [i, j] = [0, 0];
  for (const code of codes) {
    const kind = NAMES[code];
    if (steps.length === 0 || steps[steps.length - 1].kind !== kind) steps.push({ kind, from: [], to: [] });
    const step = steps[steps.length - 1];
    if (code !== INS) step.from.push(a[i++]);
    if (code !== DEL) step.to.push(b[j++]);
  }
  return steps;
}

/**
 * The least number of edits of `ops` that put `a` into `b` if any text may stand before and after it for free.
 *
 * With `glued`, that text may be glued to the first and the last token. Null if counting would take too long.
 */
export function padded(a, b, ops, glued, mostCells = MOST_CELLS) {
  if (a.length * b.length > mostCells) return null;
  const [del, ins, sub] = EVERY_OPERATION.map((name) => (ops.includes(name) ? 1 : FAR));
  const same = (i, token) => {
    if (!glued) return a[i] === token;
    const place = i === 0 ? token.length - a[i].length : 0;
    if (a.length === 1) return token.includes(a[i]);
    return i === 0 || i === a.length - 1 ? place >= 0 && token.startsWith(a[i], place) : a[i] === token;
  };
  let row = new Array(b.length + 1).fill(0);
  for (let i = 0; i < a.length; i += 1) {
    const next = [row[0] + del];
    for (let j = 0; j < b.length; j += 1) next.push(Math.min(row[j] + (same(i, b[j]) ? 0 : sub), row[j + 1] + del, next[j] + ins));
    row = next;
  }
  return row.reduce((least, value) => Math.min(least, value));
}

/** How many tokens were deleted, inserted and substituted by the steps. */
export function tally(steps) {
  const counts = { del: 0, ins: 0, sub: 0 };
  for (const { kind, from, to } of steps) if (kind !== "keep") counts[kind] += Math.max(from.length, to.length);
  return counts;
}

/**
 * Whether a certificate covers the edited text `b` of the certified text `a`.
 *
 * `radii` is a list of [operations, certified radius]; the first is the one that the visitor asked for. The radii hold at
 * the same time, so one that covers the edited text is enough. Returns { inside, alignment } with the alignment for the
 * first operations; if inside, also the `ops`, the `radius` and the `distance` that cover the text. `inside` is null if
 * counting would take too long to decide.
 */
export function covered(a, b, radii, mostCells = MOST_CELLS) {
  const alignments = radii.map(([ops]) => align(a, b, ops, mostCells));
  let inside = false;
  for (const [place, [ops, radius]] of radii.entries()) {
    const { distance, atLeast } = alignments[place];
    if (distance !== null && distance <= radius) return { inside: true, ops, radius, distance, alignment: alignments[0] };
    if (distance === null && atLeast <= radius) inside = null;
  }
  return { inside, alignment: alignments[0] };
}
