// Exact models: what every word adds to the lead of the answer, and what the worst edits take of it.

import { byId, element, svg } from "./dom.js";
import { count, number } from "./tokens.js";

/** What edits must take, at least, to change the answer. */
export const lead = ({ slack }) => slack + 1;

/** A part of a lead, such as "2.5%"; with its sign if there is a `plus` to put before it. */
export const part = (score, margin, plus = "") => `${score < 0 ? "−" : plus}${Number(((100 * Math.abs(score)) / lead(margin)).toPrecision(3))}%`;

/** What the worst edits take: the sum of the `edits` largest costs. */
function taken({ ops, margin }, edits) {
  const inserted = ops.includes("ins") ? margin.insertion : 0;
  const cost = (score) => Math.max(0, ops.includes("del") ? score : 0, ops.includes("sub") ? score + margin.insertion : 0);
  const costs = margin.deletion.map(cost).filter((value) => value > inserted).sort((first, second) => second - first).slice(0, edits);
  return costs.reduce((sum, value) => sum + value, 0) + (edits - costs.length) * inserted;
}

/** The lead, and what is left of it after the worst edits, as a scale. */
export function drawLead(holder, result) {
  const { margin, radius, label } = result;
  const [inside, beyond] = [taken(result, radius), taken(result, radius + 1)];
  const end = Math.max(lead(margin), beyond);
  const drawing = svg("svg", { viewBox: "0 0 400 26", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const [width, name] of [[end, "track"], [beyond, "share"], [inside, "lower"]]) {
    drawing.append(svg("rect", { x: 0, y: 8, width: (400 * width) / end, height: 10, class: name }));
  }
  const mark = (399 * lead(margin)) / end;
  drawing.append(svg("line", { x1: mark, x2: mark, y1: 2, y2: 24, class: "needed" }));
  const next = beyond > margin.slack ? `One more takes ${part(beyond, margin)}, more than there is.` : "No number of edits takes all of it.";
  const worst = radius === 0 ? "" : `The ${radius === 1 ? "worst edit takes" : `${number(radius)} worst edits take`} ${part(inside, margin)} of it, which leaves ${part(lead(margin) - inside, margin)}. `;
  const words = `The mark is the lead of “${label}” over “${margin.rival}”. ${worst}${next}`;
  holder.replaceChildren(drawing, element("p", { class: "muted" }, words));
  holder.hidden = false;
}

/** A text with another answer, at the least distance at which there is one. */
export function showCounterexample(result, unit) {
  const { counterexample } = result.margin;
  byId("copy-example").hidden = counterexample === null || unit.pattern === null;
  const [about, copy] = byId("copy-example").children;
  about.textContent = `The promise cannot be larger. This text is ${count(result.radius + 1, { one: "edit", many: "edits" })} away and gets another answer:`;
  copy.textContent = counterexample ?? "";
}

/** How the heat map speaks of scores: see `VOTES` in influence.js. */
export const SCORES = {
  effects: ({ margin }) => margin.deletion.map((score) => ({ difference: score, clear: score !== 0, margin })),
  about: ({ margin }, label, { one }) => `A ${one} is marked if it adds to the lead of “${label}” over “${margin.rival}”, or takes from it.`,
  quiet: (_, __, { one }) => `No ${one} has a score for or against the answer.`,
  caveat: (_, { one, many }) =>
    `The figures are the scores themselves, as parts of the lead, and the promise follows from them. No ${one}, seen or never seen, can have a score beyond a bound. The order of the ${many} plays no role.`,
  said: (item, _, { one }) =>
    `${item.difference < 0 ? "takes" : "adds"} ${part(Math.abs(item.difference), item.margin)} of the lead. In its place, the worst ${one} would take ${part(item.difference + item.margin.insertion, item.margin)} of it.`,
  head: ["of the lead"],
  cells: ({ difference, margin }) => [part(difference, margin, "+")],
  caption: (label, { many }) => `What ${many} add to the lead of “${label}” or take from it: the largest parts.`,
};
