// "Change the text yourself": the edits are counted against the promise, and the model is asked again.

import { certify } from "./api.js";
import { align, covered, EVERY_OPERATION, padded, tally } from "./distance.js";
import { byId, debounced, element, scale, spoken } from "./dom.js";
import { lead, part } from "./influence.js";
import { confidence, editWords, percent, verdict } from "./sentences.js";
import { count, number, split, UNITS, unitOf } from "./tokens.js";

const COUNT_AFTER = 120; // milliseconds after the last key
const ASK_AFTER = 600;
const CONTEXT = 12; // unchanged tokens that are shown on each side of a change
const LONGEST_RUN = 60; // unchanged tokens that are shown in a row

export class EditPanel {
  /** `problem(error, retry)` shows a failure. */
  constructor(problem) {
    this.problem = problem;
    this.subject = null;
    this.asking = null;
    this.countSoon = debounced(() => this.count(), COUNT_AFTER);
    this.askSoon = debounced(() => this.ask(), ASK_AFTER);
    this.input = byId("edited");
    this.input.addEventListener("input", () => this.changed());
    byId("worst").addEventListener("click", () => this.replace(this.subject.result.margin.counterexample));
    byId("reset").addEventListener("click", () => this.replace(this.subject.text));
  }

  /** Start with a certified text. `subject` has text, result, model and request. */
  show(subject) {
    this.hide();
    const { result, model } = subject;
    const unit = unitOf(model.unit);
    const tokens = split(subject.text, unit);
    byId("edit").hidden = result.certificate === null;
    if (byId("edit").hidden) return;
    const countable = tokens !== null && tokens.length === result.length;
    byId("edit-body").hidden = !countable;
    const free = result.padded_radius < 0 ? "" : " What you add before and after it counts nothing: paste as much as you like.";
    byId("about-edit").textContent = countable ? aboutEdit(unit) + free : uncounted(model);
    if (!countable) return;
    const { radii } = result;
    const others = [...EVERY_OPERATION.map((name) => [[name], radii[name]]), [EVERY_OPERATION, radii.edit]];
    const known = others.filter(([ops, radius]) => radius !== undefined && ops.join() !== result.ops.join());
    this.subject = { ...subject, unit, tokens, radii: [[result.ops, result.radius], ...known] };
    this.input.value = subject.text;
    byId("worst").hidden = !result.margin?.counterexample;
    this.count();
    byId("fresh").textContent = "Not asked yet: nothing is changed.";
  }

  hide() {
    this.countSoon.cancel();
    this.askSoon.cancel();
    this.asking?.abort();
    this.asking = null;
    this.subject = null;
    byId("edit").hidden = true;
  }

  changed() {
    if (!this.subject) return;
    this.asking?.abort();
    this.countSoon();
    this.askSoon();
    byId("fresh").textContent = "Waiting for you to pause …";
  }

  /** Count the edits and draw them. */
  count() {
    const { tokens, unit, result, radii } = this.subject;
    const edited = split(this.input.value, unit);
    const cover = covered(tokens, edited, radii);
    const inner = !cover.inside && result.padded_radius >= 0 ? padded(tokens, edited, result.ops, unit === UNITS.word) : null;
    if (inner !== null && inner <= result.padded_radius) Object.assign(cover, { inside: true, around: true, radius: result.padded_radius, distance: inner });
    const { distance } = cover.alignment;
    const shown = cover.alignment.steps ? cover.alignment : align(tokens, edited, EVERY_OPERATION);
    const { kind, head, text } = verdict({ result, unit, distance, cover });
    byId("verdict").dataset.kind = kind;
    const [headline, explanation] = byId("verdict-words").children;
    headline.textContent = head;
    explanation.textContent = shown.steps && shown.distance > 0 ? `${editWords(shown.distance, tally(shown.steps))}. ${text}` : text;
    drawBudget(byId("budget"), cover.inside ? cover.distance : distance, cover.inside ? cover.radius : result.radius);
    drawDiff(byId("diff"), shown.steps, unit);
  }

  /** Certify the edited text. */
  async ask() {
    const { request, result, tokens, unit } = this.subject;
    if (split(this.input.value, unit).join("\0") === tokens.join("\0")) {
      byId("fresh").textContent = "Not asked: nothing is changed.";
      return;
    }
    const asking = new AbortController();
    this.asking = asking;
    byId("fresh").textContent = "Asking the model …";
    try {
      const fresh = await certify({ ...request, text: this.input.value, influence: Boolean(result.margin) }, asking.signal);
      if (asking === this.asking) this.showFresh(fresh);
    } catch (error) {
      if (error.name === "AbortError" || asking !== this.asking) return;
      byId("fresh").textContent = `No fresh answer. ${error.message}`;
      this.problem(error, () => this.ask());
    }
  }

  showFresh(fresh) {
    const { result, unit } = this.subject;
    if (fresh.abstained) {
      const words = fresh.label === null ? "No vote was counted." : `The votes are too divided: ${percent(fresh.score)} for “${fresh.label}”.`;
      byId("fresh").replaceChildren(element("b", {}, "None"), ` – the model abstains. ${words}`);
      return;
    }
    const same = String(fresh.label) === String(result.label);
    const inside = byId("verdict").dataset.kind === "inside";
    const known = !result.abstained; // otherwise there is no answer to compare with
    const parts = [element("b", { dir: "auto", class: same || !known ? "" : "changed" }, String(fresh.label))];
    if (known) parts.push(same ? " – the same answer" : " – the answer has changed");
    if (!fresh.margin) parts.push(`, with ${percent(fresh.score)} of the votes`);
    else if (same) parts.push(`, with ${part(lead(fresh.margin), result.margin)} of the lead that the original text has`);
    parts.push(`. Its own promise: ${count(fresh.radius, unit)} (${confidence(fresh.alpha)}). `);
    if (inside && !same) {
      parts.push(`This contradicts the promise: one of the two is wrong, which happens with a probability of at most ${percent(result.alpha)} for each.`);
    }
    byId("fresh").replaceChildren(...parts);
  }

  /** Make edits for the visitor. */
  replace(text) {
    this.input.value = text;
    this.count();
    this.changed();
  }
}

const aboutEdit = (unit) =>
  `Type into your version. The page counts the least number of ${unit.many} that someone must delete, insert or replace to get from the certified text ` +
  `to yours.${unit === UNITS.word ? " White space does not count, but a comma that sticks to a word is part of it." : ""}`;

const uncounted = (model) =>
  `This page cannot count this text's units of the kind “${model.unit}” while you type. The promise above is valid: it counts edits of such units.`;

/** What an edited text uses of the edits that the promise covers, and what is beyond it. */
function drawBudget(holder, distance, radius) {
  holder.hidden = radius < 0 || distance === null || distance === Infinity;
  if (holder.hidden) return;
  const plural = (value) => `${number(value)} ${value === 1 ? "edit" : "edits"}`;
  const words = distance > radius ? `${plural(distance)}, ${number(distance - radius)} beyond the promise` : `${number(distance)} of ${plural(radius)} used`;
  const end = Math.max(radius, distance, 1);
  holder.replaceChildren(scale([[distance / end, "over"], [Math.min(distance, radius) / end, "used"]], radius / end), element("p", {}, words));
}

/** The steps as a text with deleted, inserted and replaced tokens. Long unchanged parts are left out. */
function drawDiff(holder, steps, unit) {
  if (steps === null) {
    holder.replaceChildren(element("em", {}, "The texts are too long and too different to show what changed."));
    return;
  }
  const parts = [];
  const mark = (kind, tokens, said) => [spoken(` ${said}: `), element(kind, {}, tokens.join(unit.glue)), spoken(". ")];
  steps.forEach(({ kind, from, to }, place) => {
    if (place > 0) parts.push(unit.glue);
    if (kind === "keep") parts.push(...kept(from, place > 0, place < steps.length - 1, unit));
    else if (kind === "del") parts.push(...mark("del", from, "deleted"));
    else if (kind === "ins") parts.push(...mark("ins", to, "inserted"));
    else parts.push(element("span", { class: "sub" }, [...mark("del", from, "replaced"), ...mark("ins", to, "by")]));
  });
  holder.replaceChildren(...(parts.length ? parts : [element("em", {}, "Both texts are empty.")]));
}

/** A long unchanged part is shown only near the changes. */
function kept(tokens, after, before, unit) {
  if (tokens.length <= LONGEST_RUN) return [tokens.join(unit.glue)];
  const head = after || !before ? CONTEXT : 0;
  const tail = before ? CONTEXT : 0;
  const gap = element("span", { class: "gap" }, ` … ${count(tokens.length - head - tail, unit)} unchanged … `);
  return [tokens.slice(0, head).join(unit.glue), gap, tokens.slice(tokens.length - tail).join(unit.glue)];
}
