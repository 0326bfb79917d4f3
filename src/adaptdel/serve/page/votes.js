// The votes as a picture: a row of dots for each answer, and a scale with what is known about the share of the leader.

import { element, svg } from "./dom.js";
import { confidence, percent } from "./sentences.js";
import { number } from "./tokens.js";

const MOST_DOTS = 240;
const COLUMNS = 40;
const MOST_ROWS = 6;

/** How many votes a dot stands for: 1, 2, 5, 10, 20, ... so that there are not too many dots. */
function votesPerDot(total) {
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) if (total / (digit * power) <= MOST_DOTS) return digit * power;
  }
}

/** The votes for a label; the server names labels as Python prints them. */
export function votesFor(votes, label) {
  const printed = { true: "True", false: "False", null: "None" }[String(label)];
  return votes[String(label)] ?? votes[`${label}.0`] ?? votes[printed] ?? 0;
}

/** [answer, votes] by falling votes; ties and answers without votes in the order of the classes. */
function ranked(votes, classes) {
  return classes.map((name) => [String(name), votesFor(votes, name)]).sort((first, second) => second[1] - first[1]);
}

/** Draw votes, a map from answers to numbers, into a list. `leader` comes first if it is given. */
export function drawVotes(list, votes, classes, leader = null) {
  let rows = ranked(votes, classes);
  if (leader !== null) rows = [...rows.filter(([name]) => name === leader), ...rows.filter(([name]) => name !== leader)];
  const total = rows.reduce((sum, [, value]) => sum + value, 0);
  const each = votesPerDot(total);
  if (rows.length > MOST_ROWS) {
    const others = rows.slice(MOST_ROWS - 1);
    rows = [...rows.slice(0, MOST_ROWS - 1), [`${others.length} other answers`, others.reduce((sum, [, value]) => sum + value, 0)]];
  }
  list.replaceChildren(
    ...rows.map(([name, value], place) =>
      element("li", { class: place === 0 ? "leader" : "rival" }, [
        element("span", { class: "name", dir: "auto" }, name),
        element("span", { class: "figure" }, `${number(value)} of ${number(total)}, ${percent(total ? value / total : 0)}`),
        dots(value, each, place === 0),
      ]),
    ),
  );
  return each;
}

function dots(value, each, leads) {
  const drawn = Math.max(Math.round(value / each), value > 0 ? 1 : 0);
  const lines = Math.max(1, Math.ceil(drawn / COLUMNS));
  const drawing = svg("svg", { viewBox: `0 0 ${COLUMNS * 10} ${lines * 10}`, "aria-hidden": "true", class: "dots" });
  for (let dot = 0; dot < drawn; dot += 1) {
    const [x, y] = [(dot % COLUMNS) * 10 + 5, Math.floor(dot / COLUMNS) * 10 + 5];
    drawing.append(svg("circle", { cx: x, cy: y, r: leads ? 3.9 : 3.1 })); // rivals are rings, by the style sheet
  }
  return drawing;
}

/**
 * The scale from 0% to 100%: the share of the votes, the lower bound on the share of all possible copies, and the share
 * that an answer needs (null where it depends on a rival).
 */
export function drawGauge(holder, { share, lower, needed, label, alpha, exact }) {
  const drawing = svg("svg", { viewBox: "0 0 400 26", preserveAspectRatio: "none", "aria-hidden": "true" });
  const bar = (from, to, name) =>
    drawing.append(svg("rect", { x: 400 * from, y: 8, width: Math.max(400 * (to - from), 0), height: 10, class: name }));
  bar(0, 1, "track");
  bar(0, share, "share");
  bar(0, Math.min(lower, share), "lower");
  if (needed !== null) drawing.append(svg("line", { x1: 400 * needed, x2: 400 * needed, y1: 2, y2: 24, class: "needed" }));
  const known = exact
    ? `Exactly ${percent(share)} of all copies get “${label}”, weighted by how likely they are.`
    : `Among all possible copies, at least ${percent(lower)} get “${label}” (${confidence(alpha)}): the lower bound that the votes support.`;
  const need = needed === null ? "" : ` The mark at ${percent(needed)} is what the answer needs. The promise comes from the distance to it.`;
  holder.replaceChildren(drawing, element("p", { class: "muted" }, known + need));
  holder.hidden = false;
}
