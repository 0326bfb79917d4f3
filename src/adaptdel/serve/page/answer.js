// The answer, its promise in words, and the votes as they arrive.

import { byId, element, scale } from "./dom.js";
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
      drawVotes(byId("votes"), votes, this.model.classes);
      byId("about-votes").textContent = `${PHASES[phase]}: ${number(total)} votes so far.`;
    }
    const { look } = this;
    if (look) {
      const share = votesFor(look.votes, look.label) / Object.values(look.votes).reduce((sum, value) => sum + value, 0);
      drawGauge(byId("gauge"), { share, lower: look.lower, needed: this.needed(look.label), label: look.label, alpha: this.alpha });
    }
  }

  /** The fraction of votes that the answer needs; null if it depends on a rival. */
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
    if (result.character_radius > 0 && unit.one === "word") {
      parts.push(element("p", {}, `It also stays under up to ${count(result.character_radius, { one: "character edit", many: "character edits" })}, within words or between them.`));
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
      if (result.segment) drawSegment(byId("gauge"), result, unit);
      else drawLead(byId("gauge"), result);
      showCounterexample(result, unit);
      return;
    }
    if (result.certificate.evidence.selection) this.drawResult(result, model);
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
    const { copies, selection, votes: looks } = certificate.evidence;
    const exact = copies !== null;
    const counts = exact ? copies.map((row) => row.reduce((sum, value) => sum + value, 0)) : looks[looks.length - 1];
    const votes = Object.fromEntries(certificate.classes.map((name, place) => [String(name), counts[place]]));
    drawVotes(byId("votes"), votes, model.classes, String(result.label));
    const used = counts.reduce((sum, value) => sum + value, 0);
    const took = seconds < 0.1 ? `${Math.max(1, Math.round(1000 * seconds))} milliseconds` : `${seconds.toFixed(1)} seconds`;
    byId("about-votes").textContent = exact
      ? `The text is short, so all its ${number(used)} possible copies were classified, in ${took}.`
      : `${number(selection.reduce((sum, value) => sum + value, 0))} votes chose the answer, and then ${number(used)} others measured its share, shown here. They took ${took}.`;
    drawGauge(byId("gauge"), { share: score, lower: certificate.derived.p1, needed: this.needed(result.label), label: result.label, alpha: result.alpha, exact });
  }

  /** Say that nothing came of it. */
  fail(sentence) {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    byId("promise").dataset.kind = "failed";
    byId("promise").replaceChildren(element("p", { class: "head" }, "No answer."), element("p", {}, sentence));
  }
}

/** The votes for a label; the server names labels as Python prints them. */
const votesFor = (votes, label) => votes[String(label)] ?? votes[`${label}.0`] ?? votes[{ true: "True", false: "False" }[label]] ?? 0;

/** Draw votes, a map from answers to numbers, into a list of bars. `leader` comes first if it is given. */
function drawVotes(list, votes, classes, leader = null) {
  let rows = classes.map((name) => [String(name), votesFor(votes, name)]).sort((first, second) => second[1] - first[1]);
  rows = [...rows.filter(([name]) => name === leader), ...rows.filter(([name]) => name !== leader)];
  const total = rows.reduce((sum, [, value]) => sum + value, 0);
  if (rows.length > MOST_ROWS) {
    const others = rows.splice(MOST_ROWS - 1);
    rows.push([`${others.length} other answers`, others.reduce((sum, [, value]) => sum + value, 0)]);
  }
  list.replaceChildren(
    ...rows.map(([name, value], place) =>
      element("li", {}, [
        element("span", { class: "name", dir: "auto" }, name),
        element("span", { class: "figure" }, `${number(value)} of ${number(total)}, ${percent(total ? value / total : 0)}`),
        scale([[total ? value / total : 0, place === 0 ? "lower" : "rival"]]),
      ]),
    ),
  );
}

/** The share of the votes, the lower bound on the share of all copies, and the share that an answer needs, if it is known. */
function drawGauge(holder, { share, lower, needed, label, alpha, exact }) {
  const known = exact
    ? `Exactly ${percent(share)} of all copies get “${label}”, weighted by how likely they are.`
    : `Among all possible copies, at least ${percent(lower)} get “${label}” (${confidence(alpha)}): the lower bound that the votes support.`;
  const need = needed === null ? "" : ` The mark at ${percent(needed)} is what the answer needs. The promise comes from the distance to it.`;
  const drawing = scale([[share, "share"], [Math.min(lower, share), "lower"]], needed);
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
  const drawing = scale([[beyond / end, "share"], [inside / end, "lower"]], lead(margin) / end);
  const next = beyond > margin.slack ? `One more takes ${part(beyond, margin)}, more than there is.` : "No number of edits takes all of it.";
  const worst = radius === 0 ? "" : `The ${radius === 1 ? "worst edit takes" : `${number(radius)} worst edits take`} ${part(inside, margin)} of it, which leaves ${part(lead(margin) - inside, margin)}. `;
  const words = `The mark is the lead of “${label}” over “${margin.rival}”. ${worst}${next}`;
  holder.replaceChildren(drawing, element("p", { class: "muted" }, words));
  holder.hidden = false;
}

/** Which tokens give the answer alone. */
function drawSegment(holder, { segment: [start, end], label }, unit) {
  const words = `The ${unit.many} ${number(start + 1)} to ${number(end)} give the answer “${label}” alone, no matter what surrounds them. They are underlined below.`;
  holder.replaceChildren(element("p", { class: "muted" }, words));
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
