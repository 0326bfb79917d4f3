// What a certificate says, in words for a visitor who has never heard of certificates.

import { count, number } from "./tokens.js";

const VERBS = { del: "delete", ins: "insert", sub: "replace" };
const PAST = { del: "deleted", ins: "inserted", sub: "replaced" };

/** "a", "a or b", "a, b or c". */
export const listed = (items, last = "or") =>
  items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} ${last} ${items[items.length - 1]}`;

export const verbs = (ops) => listed(ops.map((name) => VERBS[name]));

/** A fraction as a percentage; never 100% or 0% for what is less or more. */
export function percent(share) {
  if (share === 0 || share === 1) return `${100 * share}%`;
  const digits = share > 0.99 || share < 0.01 ? 2 : 1;
  const clipped = Math.min(Math.max(100 * share, 10 ** -digits), 100 - 10 ** -digits);
  return `${Number(clipped.toFixed(digits))}%`;
}

/** The confidence of a certificate: "confidence 95%", or "certain". */
export const confidence = (alpha) => (alpha === 0 ? "certain" : `confidence ${Number((100 * (1 - alpha)).toPrecision(10))}%`);

/** Whether neighbouring tokens are scored together, so that their order matters. */
export const hasSegments = ({ certificate }) => (certificate?.plan.filter?.segment ?? null) !== null;

/** What holds whatever text is added; "" if nothing does. */
function around({ padded_radius: radius, positions }, unit) {
  if (radius < 0) return "";
  const where = positions > 0 ? `, or with any text inserted at ${count(positions, { one: "position", many: "positions" })}` : "";
  return ` No matter what text is added before and after, it stays with up to ${count(radius, unit)} changed inside${where}.`;
}

/** The promise of a result: a heading and an explanation. */
export function promise(result, unit) {
  const { radius, label, length, alpha, ops } = result;
  if (result.abstained) {
    return {
      kind: "abstained",
      head: "The model abstains.",
      text:
        (label === null ? "No vote was counted. " : `“${label}” was ahead among the first votes, but the votes are too divided to say which answer is the most frequent. `) +
        "So nothing is promised, not even for the text exactly as it is. " +
        (result.deadline_reached ? "" : "More votes (see Settings) may decide it."),
    };
  }
  if (result.covers_every_text) {
    return {
      kind: "caution",
      head: `Every text of ${count(length, unit)} gets the answer “${label}”.`,
      text:
        `The promise reaches ${count(radius, unit)}, which is every text of this length, whatever it says. It is valid (${confidence(alpha)}), but it ` +
        "shows that the model cannot tell such short texts apart, not that it reads this one well.",
    };
  }
  if (radius === 0) {
    return {
      kind: "zero",
      head: `“${label}” holds for exactly this text.`,
      text: `The answer for the text as it is, is settled (${confidence(alpha)}). But no changed ${unit.one} is covered: a single edit might change the answer.`,
    };
  }
  return {
    kind: "certified",
    head: `${verbs(ops).replace(/^./, (letter) => letter.toUpperCase())} up to ${count(radius, unit)}: the answer stays “${label}”.`,
    text:
      `Whichever ${unit.many}, anywhere among the ${number(length)}, chosen by anyone, however clever. ` +
      (alpha === 0
        ? `This is certain: ${result.margin ? `the worst edits are known.${hasSegments(result) ? "" : ` It holds in whichever order the ${unit.many} are put, too.`}` : "every possible copy of the text was counted."}`
        : `Confidence ${confidence(alpha).slice("confidence ".length)}: on average, at most ${oneIn(alpha)} wrong.`) +
      around(result, unit) +
      " It says that the answer stays, not that the answer is right.",
  };
}

/** "one in 20 such promises is" for 0.05. */
const oneIn = (alpha) =>
  Math.abs(1 / alpha - Math.round(1 / alpha)) < 1e-9 ? `one in ${number(Math.round(1 / alpha))} such promises is` : `${percent(alpha)} of such promises are`;

/** "3 edits: 1 deleted, 2 replaced". */
export function editWords(distance, counts) {
  const parts = Object.entries(counts).filter(([, value]) => value > 0);
  return `${number(distance)} ${distance === 1 ? "edit" : "edits"}: ${parts.map(([kind, value]) => `${number(value)} ${PAST[kind]}`).join(", ")}`;
}

/** Why an edited text is covered: by the promise itself, or by that against other operations. */
function reason(cover, { ops, radius }, unit) {
  if (cover.around) return `Whatever stands before and after: inside are ${number(cover.distance)} of the ${number(cover.radius)} edits that the promise allows.`;
  if (cover.ops.join() === ops.join()) return `Your text is inside the promise of ${number(radius)} ${radius === 1 ? "edit" : "edits"}.`;
  if (cover.ops.length === 1) return `You only ${PAST[cover.ops[0]]} ${unit.many}, and against that alone the promise reaches ${count(cover.radius, unit)}.`;
  return `Against someone who may ${verbs(cover.ops)} ${unit.many}, the promise reaches ${number(cover.radius)} ${cover.radius === 1 ? "edit" : "edits"}.`;
}

/** The verdict on an edited text: a kind ("same", "inside", "outside", "none", "unknown"), a heading and an explanation. */
export function verdict(state) {
  const { result, unit, distance, cover } = state;
  const { radius, ops, label, alpha } = result;
  if (distance === 0) {
    return { kind: "same", head: "Nothing is changed yet.", text: `Change some ${unit.many} in the text, or use the buttons.` };
  }
  if (result.abstained) {
    return { kind: "none", head: "There is no promise to lose.", text: "The model abstained on the original text. See the fresh answer for yours." };
  }
  if (cover.inside) {
    return { kind: "inside", head: `The answer cannot change (${confidence(alpha)}).`, text: `${reason(cover, result, unit)} The answer stays “${label}”.` };
  }
  if (cover.inside === null) {
    return { kind: "unknown", head: "Too much has changed to count here.", text: "The texts are so long and so different that this page does not count the edits." };
  }
  if (distance === Infinity) {
    return {
      kind: "outside",
      head: "No promise any more.",
      text: `The promise covers texts that someone can reach who may only ${verbs(ops)} ${unit.many}. Yours is not one of them. The answer may still be the same.`,
    };
  }
  return {
    kind: "outside",
    head: "No promise any more.",
    text: `That is more than the ${number(radius)} that the promise covers. The answer may still be the same: see the fresh answer.`,
  };
}
