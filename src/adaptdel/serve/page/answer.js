// The answer, its promise in words, and the votes as they arrive.

import { byId, element } from "./dom.js";
import { drawLead, showCounterexample } from "./scores.js";
import { confidence, percent, promise } from "./sentences.js";
import { count, number, split, unitOf } from "./tokens.js";
import { drawGauge, drawVotes, votesFor } from "./votes.js";

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
const SHOWN_COPY = 40; // tokens of the example of a copy

export class AnswerPanel {
  /** Empty the panel and wait for votes, for a certificate at the error level `alpha`. */
  start(model, alpha) {
    [this.model, this.alpha] = [model, alpha];
    this.frame = 0;
    this.latest = null;
    this.looks = [];
    byId("answer-empty").hidden = true;
    byId("answer-body").hidden = false;
    for (const id of ["radii", "gauge", "stale", "copy-example"]) byId(id).hidden = true;
    byId("promise").replaceChildren(element("p", { class: "head waiting" }, model.votes ? "The copies are voting …" : "The model reads the text …"));
    byId("promise").dataset.kind = "waiting";
    byId("head-votes").textContent = model.votes ? "The votes" : "The lead, and what edits take of it";
    byId("about-votes").textContent = "";
    byId("looks").textContent = "";
    byId("votes").replaceChildren();
  }

  /** An event of the stream; drawn with the next frame. */
  event(name, data) {
    if (name === "votes") this.latest = data;
    else this.looks.push(data);
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
    const look = this.looks[this.looks.length - 1];
    if (look) {
      const share = votesFor(look.votes, look.label) / Math.max(1, Object.values(look.votes).reduce((sum, value) => sum + value, 0));
      drawGauge(byId("gauge"), { share, lower: look.lower, needed: this.needed(look.label), label: look.label, alpha: this.alpha });
      this.drawLooks();
    }
  }

  /** The share of copies that the answer needs; null if it depends on a rival. */
  needed(label) {
    const { classes, threshold } = this.model;
    if (classes.length !== 2) return null;
    if (threshold === null || threshold === undefined) return 0.5;
    return String(label) === String(classes[1]) ? threshold : 1 - threshold;
  }

  drawLooks() {
    let best = -1;
    const steps = [];
    for (const { radius, votes } of this.looks) {
      if (radius > best) steps.push(`${number(radius)} after ${number(Object.values(votes).reduce((sum, value) => sum + value, 0))} votes`);
      best = Math.max(best, radius);
    }
    byId("looks").textContent = steps.length > 1 ? `The promise grew with the votes: ${steps.join(", ")}.` : "";
  }

  /** The end of the stream. `example` is the example that the text is, or null. */
  show({ result, model, text }, example) {
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
    this.drawCopy(result, model, text);
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
    this.drawLooks();
  }

  /** An example of what the model reads, made in the page: the server does not tell which copies were drawn. */
  drawCopy({ influence, certificate }, model, text) {
    const unit = unitOf(model.unit);
    const tokens = split(text, unit);
    byId("copy-example").hidden = !influence || !tokens?.length || tokens.length !== influence.length;
    if (byId("copy-example").hidden) return;
    const [kept, deleted] = ["kept", "deleted"].map((name) => influence.reduce((sum, row) => sum + row[name], 0));
    const rate = kept / Math.max(kept + deleted, 1);
    const parts = [];
    let gap = false;
    for (const token of tokens) {
      if (Math.random() < rate) {
        parts.push(...(gap ? ["…"] : []), token);
        gap = false;
      } else gap = true;
    }
    if (gap) parts.push("…");
    const shown = parts.length > 2 * SHOWN_COPY ? [...parts.slice(0, 2 * SHOWN_COPY), "…"] : parts;
    const [about, copy] = byId("copy-example").children;
    const verb = certificate.noise.kind === "masking" ? "hidden" : "removed";
    about.textContent = `On average ${percent(1 - rate)} of the ${unit.many} were ${verb} from a copy. What is left may look like this (an example made by this page):`;
    copy.textContent = shown.join(unit.glue);
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
