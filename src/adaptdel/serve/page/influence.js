// Which words carry the answer: the share of votes for it with and without each word, or the score of an exact model.

import { byId, element } from "./dom.js";
import { hasSegments, percent } from "./sentences.js";
import { number, spans, unitOf } from "./tokens.js";

const CLEAR = 3; // standard errors
const CLEAR_EXACTLY = 0.01; // of the share, where there is no sampling error
const LEVELS = 4;

/** The difference that a token makes in the votes, and whether it is clear. */
function effect({ kept, for: withIt, deleted, for_when_deleted: without }, exact) {
  if (!kept || !deleted) return null;
  const [share, other, pooled] = [withIt / kept, without / deleted, (withIt + without) / (kept + deleted)];
  const error = Math.sqrt(pooled * (1 - pooled) * (1 / kept + 1 / deleted));
  const difference = share - other;
  const least = exact ? CLEAR_EXACTLY : CLEAR * error;
  return { share, other, difference, kept, deleted, clear: error > 0 && Math.abs(difference) >= least };
}

/** How the heat map speaks of votes. An effect has a `difference` and says whether it is `clear`. */
const VOTES = {
  effects: ({ influence, certificate }) => influence.map((row) => effect(row, certificate.evidence.copies !== null)),
  about: (_, label, { one }) =>
    `Some copies kept a ${one}, the others did not. A ${one} is marked if “${label}” got a clearly larger or smaller share of the votes of those that kept it.`,
  quiet: ({ influence }, label, { one, many }) =>
    influence.every((row) => row.for === row.kept && row.for_when_deleted === row.deleted)
      ? `Every vote was for “${label}”, with or without any ${one}. So no single ${one} carries the answer.`
      : `No ${one} makes a clear difference in these votes. The answer rests on many ${many} together, or more votes are needed to see it.`,
  caveat: ({ certificate }, { one, many }) => {
    const source =
      certificate.evidence.copies !== null
        ? `The figures are exact, as every copy was counted with its probability. A ${one} is marked if it makes a difference of a percentage point. `
        : `The figures come from the votes already taken for the promise. A ${one} is marked if its difference is ${CLEAR} standard errors or more, which ` +
          `happens by chance for a few ${many} in a thousand. `;
    return (
      `Read this with care. ${source}A difference shows how the votes went, one ${one} at a time. ` +
      `It is not part of the promise, and it does not say that changing a marked ${one} changes the answer, nor that plain ${many} do not matter together.`
    );
  },
  said: (item, label) =>
    `${percent(item.share)} for “${label}” among the ${number(Math.round(item.kept))} copies with it, ${percent(item.other)} among the ` +
    `${number(Math.round(item.deleted))} without it${item.clear ? "." : ": no clear difference."}`,
};

/** What edits must take, at least, to change the answer. */
export const lead = ({ slack }) => slack + 1;

/** A part of a lead, such as "2.5%"; never 100% for what is a little less. */
export function part(score, margin) {
  const share = (100 * Math.abs(score)) / lead(margin);
  return `${score < 0 ? "−" : ""}${share > 99 && share < 100 ? Math.floor(1000 * share) / 1000 : Number(share.toPrecision(3))}%`;
}

/** How the heat map speaks of scores: see `VOTES`. */
const SCORES = {
  effects: ({ margin }) => margin.deletion.map((score) => ({ difference: score, clear: score !== 0, margin })),
  about: ({ margin, segment }, label, { one, many }) =>
    `${segment ? `The underlined ${many} decide alone, no matter what stands before and after them. ` : ""}A ${one} is marked if it adds to the lead of “${label}” over “${margin.rival}”, or takes from it.`,
  quiet: (_, __, { one }) => `No ${one} has a score for or against the answer.`,
  caveat: (result, { one, many }) =>
    `The figures are the scores themselves, as parts of the lead, and the promise follows from them. No ${one}, seen or never seen, can have a score beyond a bound.${hasSegments(result) ? "" : ` The order of the ${many} plays no role.`}`,
  said: (item, _, { one }) =>
    `${item.difference < 0 ? "takes" : "adds"} ${part(Math.abs(item.difference), item.margin)} of the lead. In its place, the worst ${one} would take ${part(item.difference + item.margin.insertion, item.margin)} of it.`,
};

export class Influence {
  constructor() {
    this.words = [];
    const heat = byId("heat");
    for (const name of ["click", "pointerover"]) {
      heat.addEventListener(name, ({ target }) => this.choose(this.words.findIndex(({ node }) => node === target)));
    }
    heat.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1 };
      if (!(event.key in steps) || this.words.length === 0) return;
      event.preventDefault();
      const from = this.chosen ?? (event.key === "ArrowRight" ? -1 : this.words.length);
      this.choose(Math.min(Math.max(from + steps[event.key], 0), this.words.length - 1));
      this.words[this.chosen].node.scrollIntoView({ block: "nearest" });
    });
  }

  hide() {
    byId("influence").hidden = true;
  }

  show({ result, model, text }) {
    byId("influence").hidden = !result.margin && !result.influence;
    if (byId("influence").hidden) return;
    this.wording = result.margin ? SCORES : VOTES;
    const effects = this.wording.effects(result);
    this.label = String(result.label);
    this.unit = unitOf(model.unit);
    const clear = effects.filter((item) => item?.clear);
    const largest = Math.max(...clear.map(({ difference }) => Math.abs(difference)));
    const level = (item) => Math.max(1, Math.ceil((LEVELS * Math.abs(item.difference)) / largest));
    byId("head-influence").lastChild.textContent = ` Which ${this.unit.many} carry the answer`;
    const { about, quiet } = this.wording;
    byId("about-influence").textContent = effects.length === 0 ? "The text is empty." : (clear.length ? about : quiet)(result, this.label, this.unit);
    byId("influence-body").hidden = clear.length === 0;
    this.chosen = null;
    byId("heat-word").textContent = `Point at a ${this.unit.one}, or move with the arrow keys, to read its figures.`;
    const nodes = result.tokens.map((token, place) => {
      const item = effects[place];
      const name = item?.clear ? `heat-${item.difference > 0 ? "for" : "against"}-${level(item)}` : null;
      const [start, end] = result.segment ?? [0, 0];
      const classes = [name, place >= start && place < end && "segment"].filter(Boolean).join(" ") || null;
      return element("span", { class: classes }, String(token));
    });
    this.words = nodes.map((node, place) => ({ node, token: String(result.tokens[place]), item: effects[place] }));
    const heat = byId("heat");
    heat.replaceChildren(...this.laidOut(nodes, result.tokens, text));
    heat.setAttribute("aria-label", `The text; left and right arrow keys choose a ${this.unit.one}`);
    byId("caveat").textContent = this.wording.caveat(result, this.unit);
  }

  /** The tokens as they stand in the text where the page can split it, else one after the other. */
  laidOut(nodes, tokens, text) {
    const positions = this.unit.pattern ? spans(text, this.unit) : [];
    if (positions.length !== nodes.length || positions.some(({ token }, place) => token !== tokens[place])) return nodes.flatMap((node) => [node, " "]);
    const parts = [];
    let end = 0;
    positions.forEach((place, index) => {
      parts.push(text.slice(end, place.start), nodes[index]);
      end = place.end;
    });
    return [...parts, text.slice(end)];
  }

  choose(place) {
    if (place < 0) return;
    if (this.chosen !== null) this.words[this.chosen].node.classList.remove("chosen");
    this.chosen = place;
    const { node, token, item } = this.words[place];
    node.classList.add("chosen");
    byId("heat-word").textContent = `“${token}”: ${item ? this.wording.said(item, this.label, this.unit) : "every copy treated it alike, so nothing can be compared."}`;
  }
}
