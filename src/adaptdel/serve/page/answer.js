// The answer, its promise in words, and the votes as they arrive.

import { byId, element, svg } from "./dom.js";
import { lead, part } from "./influence.js";
import { confidence, percent, promise } from "./sentences.js";
import { count, number, unitOf } from "./tokens.js";

const TILES = [
  ["del", "deletions only"],
  ["ins", "insertions only"],
  ["sub", "replacements only"],
  ["edit", "all three mixed"],
];
const PHASES = {
  selection: "Choosing the answer",
  estimation: "Bounding the share of the answer",
  enumeration: "The text is short: every possible copy is counted",
};
const MOST_DOTS = 240;
const COLUMNS = 40;
const MOST_ROWS = 6;

export class AnswerPanel {
  /** Empty the panel and wait for votes, for a certificate at the error level `alpha`. */
  start(model, alpha) {
    [this.model, this.alpha] = [model, alpha];
    this.frame = 0;
    this.latest = null;
    this.look = null;
    byId("answer-empty").hidden = true;
    byId("answer-body").hidden = false;
    for (const id of ["radii", "gauge", "stale", "counterexample"]) byId(id).hidden = true;
    byId("promise").replaceChildren(element("p", { class: "head waiting" }, model.votes ? "The copies are voting …" : "The model reads the text …"));
    byId("promise").dataset.kind = "waiting";
    byId("head-votes").textContent = model.votes ? "The votes" : "The lead, and what edits take of it";
    byId("about-votes").textContent = "";
    byId("votes").replaceChildren();
  }

  /** An event of the stream; drawn with the next frame. */
  event(name, data) {
    if (name === "votes") this.latest = data;
    else this.look = data;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    if (this.latest) {
      const { phase, votes, total } = this.latest;
      const each = drawVotes(byId("votes"), votes, this.model.classes);
      byId("about-votes").textContent = `${PHASES[phase] ?? "Voting"}: ${number(total)} votes so far. ${scaleWords(each)}`;
    }
    const { look } = this;
    if (look) {
      const share = votesFor(look.votes, look.label) / Math.max(1, Object.values(look.votes).reduce((sum, value) => sum + value, 0));
      drawGauge(byId("gauge"), { share, lower: look.lower, needed: this.needed(look.label), label: look.label, alpha: this.alpha });
    }
  }

  /** The share of copies that the answer needs; null if it depends on a rival. */
  needed(label) {
    const { classes, threshold } = this.model;
    if (classes.length !== 2) return null;
    if (threshold === null || threshold === undefined) return 0.5;
    return String(label) === String(classes[1]) ? threshold : 1 - threshold;
  }

  /** The end of the stream. `example` is the example that the text is, or null. */
  show({ result, model }, example) {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const unit = unitOf(model.unit);
    const { kind, head, text: explanation } = promise(result, unit);
    const label = String(result.label);
    const parts = [element("p", { class: "head" }, head), element("p", {}, explanation)];
    if (!result.abstained) parts.unshift(element("p", { class: "answer" }, ["Answer ", element("b", { dir: "auto" }, label)]));
    if (result.certificate?.k > 1) parts.push(element("p", {}, `The promise is that “${label}” stays among the ${result.certificate.k} most frequent answers.`));
    if (result.character_radius > 0 && unit.one === "word") {
      parts.push(element("p", {}, `The answer also stays if up to ${number(result.character_radius)} characters are deleted, inserted or replaced, within words or between them.`));
    }
    if (result.deadline_reached) parts.push(element("p", {}, "The time limit ended the voting. The promise is what the votes until then support."));
    if (!result.abstained && example?.label !== undefined && example?.label !== null) {
      const right = String(example.label) === label;
      parts.push(element("p", { class: "muted" }, `In the data, this example is labelled “${example.label}”: the answer is ${right ? "right" : "wrong"}. The promise does not depend on that.`));
    }
    byId("promise").replaceChildren(...parts);
    byId("promise").dataset.kind = kind;
    this.drawRadii(result, unit);
    if (!result.certificate) return; // the time limit came before anything was proven
    if (result.margin) {
      drawLead(byId("gauge"), result);
      showCounterexample(result, unit);
      return;
    }
    this.drawResult(result, model);
  }

  drawRadii({ radii, abstained }, unit) {
    const known = TILES.filter(([name]) => radii?.[name] !== undefined);
    byId("radii").hidden = abstained || known.length < 2;
    byId("radii").replaceChildren(
      ...known.map(([name, words]) =>
        element("div", {}, [element("dt", {}, words), element("dd", {}, [element("b", {}, number(Math.max(radii[name], 0))), ` ${radii[name] === 1 ? unit.one : unit.many}`])]),
      ),
    );
  }

  drawResult(result, model) {
    const { certificate, score, seconds } = result;
    const exact = certificate.exact !== null;
    const counts = exact ? certificate.exact.map((row) => row.reduce((sum, value) => sum + value, 0)) : certificate.votes[certificate.votes.length - 1];
    const votes = Object.fromEntries(certificate.classes.map((name, place) => [String(name), counts[place]]));
    const each = drawVotes(byId("votes"), votes, model.classes, String(result.label));
    const used = counts.reduce((sum, value) => sum + value, 0);
    const took = seconds < 0.1 ? `${Math.max(1, Math.round(1000 * seconds))} milliseconds` : `${seconds.toFixed(1)} seconds`;
    byId("about-votes").textContent = exact
      ? `The text is short, so all its ${number(used)} possible copies were classified, in ${took}. ${scaleWords(each)}`
      : `${number(certificate.selection.reduce((sum, value) => sum + value, 0))} votes chose the answer, and then ${number(used)} others measured its share, shown here. They took ${took}. ${scaleWords(each)}`;
    drawGauge(byId("gauge"), { share: score, lower: certificate.derived.p1, needed: this.needed(result.label), label: result.label, alpha: result.alpha, exact });
  }

  /** Say that nothing came of it. */
  fail(sentence) {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    byId("promise").dataset.kind = "failed";
    byId("promise").replaceChildren(element("p", { class: "head" }, "No answer."), element("p", {}, sentence));
  }

  /** One sentence for screen readers and tests. */
  static summary(result, model) {
    const unit = unitOf(model.unit);
    return result.abstained ? "The model abstains." : `Answer ${result.label}, radius ${count(result.radius, unit)}, ${confidence(result.alpha)}.`;
  }
}

const scaleWords = (each) => (each === 1 ? "Each dot is a vote." : `Each dot is ${number(each)} votes.`);

// The votes: a row of dots for each answer, and a scale with what is known about the share of the leader.

/** How many votes a dot stands for: 1, 2, 5, 10, 20, ... so that there are not too many dots. */
function votesPerDot(total) {
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) if (total / (digit * power) <= MOST_DOTS) return digit * power;
  }
}

/** The votes for a label; the server names labels as Python prints them. */
function votesFor(votes, label) {
  const printed = { true: "True", false: "False", null: "None" }[String(label)];
  return votes[String(label)] ?? votes[`${label}.0`] ?? votes[printed] ?? 0;
}

/** [answer, votes] by falling votes; ties and answers without votes in the order of the classes. */
function ranked(votes, classes) {
  return classes.map((name) => [String(name), votesFor(votes, name)]).sort((first, second) => second[1] - first[1]);
}

/** Draw votes, a map from answers to numbers, into a list. `leader` comes first if it is given. */
function drawVotes(list, votes, classes, leader = null) {
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
function drawGauge(holder, { share, lower, needed, label, alpha, exact }) {
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

// Exact models: the lead of the answer, and what the worst edits take of it.

/** What the worst edits take: the sum of the `edits` largest costs. */
function taken({ ops, margin }, edits) {
  const inserted = ops.includes("ins") ? margin.insertion : 0;
  const cost = (score) => Math.max(0, ops.includes("del") ? score : 0, ops.includes("sub") ? score + margin.insertion : 0);
  const costs = margin.deletion.map(cost).filter((value) => value > inserted).sort((first, second) => second - first).slice(0, edits);
  return costs.reduce((sum, value) => sum + value, 0) + (edits - costs.length) * inserted;
}

/** The lead, and what is left of it after the worst edits, as a scale. */
function drawLead(holder, result) {
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
function showCounterexample(result, unit) {
  const { counterexample } = result.margin;
  byId("counterexample").hidden = counterexample === null || unit.pattern === null;
  const [about, copy] = byId("counterexample").children;
  about.textContent = `The promise cannot be larger. This text is ${count(result.radius + 1, { one: "edit", many: "edits" })} away and gets another answer:`;
  copy.textContent = counterexample ?? "";
}
