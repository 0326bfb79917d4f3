// The page of `adaptdel serve`: ties the panels together.

import { AnswerPanel } from "./answer.js";
import * as api from "./api.js";
import { byId, debounced, element } from "./dom.js";
import { EditPanel } from "./edit.js";
import { Influence } from "./influence.js";
import { listed } from "./sentences.js";
import { Settings } from "./settings.js";
import { count, number, split, unitOf } from "./tokens.js";

class Page {
  constructor() {
    byId("no-script").remove();
    this.models = [];
    this.model = null;
    this.limits = null;
    this.subject = null; // the certified text: text, result, model, request
    this.asking = null;
    this.text = byId("text");
    this.answer = new AnswerPanel();
    this.edit = new EditPanel((error, retry) => this.fail(error, retry));
    this.influence = new Influence();
    this.settings = new Settings(() => this.changed());
    const measureSoon = debounced(() => this.measure(), 100);
    this.text.addEventListener("input", () => {
      this.changed();
      measureSoon();
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.certify();
    });
    byId("certify").addEventListener("click", () => this.certify());
    byId("stop").addEventListener("click", () => this.asking?.abort());
    byId("model").addEventListener("change", () => this.choose(this.models[byId("model").selectedIndex]));
    byId("problem").querySelector("button").addEventListener("click", () => {
      byId("problem").hidden = true;
      this.retry();
    });
    byId("ask-token").addEventListener("submit", (event) => {
      event.preventDefault();
      api.useToken(byId("token").value.trim());
      byId("token").value = "";
      byId("ask-token").hidden = true;
      byId("problem").hidden = true;
      this.retry();
    });
    this.retry = () => this.load();
  }

  /** Ask the server for its models. */
  async load() {
    try {
      const { models, limits, version } = await api.models();
      [this.models, this.limits] = [models, limits];
      byId("version").textContent = `adaptdel ${version}.`;
    } catch (error) {
      this.fail(error, () => this.load());
      return;
    }
    byId("model").replaceChildren(...this.models.map((model) => element("option", {}, model.name)));
    byId("choose-model").hidden = this.models.length < 2;
    byId("model").selectedIndex = 0;
    this.choose(this.models[0]);
  }

  choose(model) {
    this.model = model;
    this.asking?.abort();
    this.clear();
    const classes = model.classes.map((name) => `“${name}”`);
    const method = model.method ? `, method ${model.method}` : "";
    byId("about-model").textContent =
      `The model “${model.name}” (${model.kind}${method}) answers ${classes.length > 8 ? `one of ${classes.length} classes` : listed(classes)}.`;
    const examples = model.examples ?? [];
    byId("choose-example").hidden = examples.length === 0;
    byId("label-text").textContent = examples.length ? "or paste your own" : "Paste or write a text";
    byId("examples").replaceChildren(
      ...examples.map((example) => {
        const button = element("button", { type: "button", "aria-pressed": "false" }, example.title);
        button.addEventListener("click", () => {
          this.text.value = example.text;
          this.changed();
          this.measure();
        });
        return element("li", {}, button);
      }),
    );
    byId("how-votes").hidden = model.votes === null;
    byId("how-scores").hidden = model.votes !== null;
    this.settings.use(model, this.limits);
    if (this.text.value === "" && examples.length) this.text.value = examples[0].text;
    this.measure();
  }

  /** Hide what belongs to an earlier answer. */
  clear() {
    this.subject = null;
    byId("answer-empty").hidden = false;
    byId("answer-body").hidden = true;
    this.edit.hide();
    this.influence.hide();
  }

  /** Show the length of the text against the limit. */
  measure() {
    if (!this.model) return;
    const unit = unitOf(this.model.unit);
    const tokens = split(this.text.value, unit);
    const tooLong = tokens !== null && tokens.length > this.limits.tokens;
    byId("length").textContent =
      tokens === null
        ? ""
        : tooLong
          ? `${count(tokens.length, unit)}: this server takes at most ${number(this.limits.tokens)}. Shorten the text.`
          : count(tokens.length, unit);
    byId("length").classList.toggle("wrong", tooLong);
    byId("certify").disabled = tooLong || this.asking !== null;
    byId("examples").querySelectorAll("button").forEach((button, place) => {
      button.setAttribute("aria-pressed", String(this.model.examples[place].text === this.text.value));
    });
  }

  /** The text or a setting is not the certified one any more. */
  changed() {
    if (!this.subject) return;
    byId("stale").hidden = JSON.stringify(this.request()) === JSON.stringify(this.subject.request);
  }

  request() {
    return { text: this.text.value, ...this.settings.request(this.models.length > 1) };
  }

  async certify() {
    if (!this.model || byId("certify").disabled) return;
    if (!this.settings.check(true)) return;
    const [model, request] = [this.model, this.request()];
    const asking = new AbortController();
    this.asking = asking;
    byId("problem").hidden = true;
    this.clear();
    this.answer.start(model, request.alpha ?? model.alpha);
    this.busy(true);
    try {
      const result = await api.certify({ ...request, influence: true }, asking.signal, (name, data) => this.answer.event(name, data));
      this.subject = { text: request.text, result, model, request };
      const example = (model.examples ?? []).find(({ text }) => text === request.text) ?? null;
      this.answer.show(this.subject, example);
      this.edit.show(this.subject);
      this.influence.show(this.subject);
      this.changed();
    } catch (error) {
      if (asking !== this.asking) return; // another model was chosen
      if (error.name === "AbortError") this.answer.fail("You stopped the voting. The server stops too.");
      else {
        if (!(error instanceof api.Problem)) console.error(error); // a defect of the page
        this.answer.fail(error instanceof api.Problem ? error.message : "The page could not show the answer. Reload it and try again.");
        this.fail(error, () => this.certify());
      }
    } finally {
      if (asking === this.asking) {
        this.asking = null;
        this.busy(false);
      }
    }
  }

  busy(is) {
    byId("certify").disabled = is;
    byId("certify").textContent = is ? (this.model.votes ? "Voting …" : "Reading …") : "Certify";
    byId("stop").hidden = !is;
    byId("answer").setAttribute("aria-busy", String(is));
  }

  /** Show a failure, with a way to try again; ask for the token if the server wants one. */
  fail(error, retry) {
    this.retry = retry;
    if (error.status === 401) {
      byId("problem").hidden = !api.hasToken();
      byId("problem").firstElementChild.textContent = api.hasToken() ? "The server did not accept this token." : "";
      byId("problem").querySelector("button").hidden = true;
      byId("ask-token").hidden = false;
      byId("token").focus();
      return;
    }
    byId("problem").firstElementChild.textContent = error instanceof api.Problem ? error.message : "Something went wrong in this page. Reload it and try again.";
    byId("problem").querySelector("button").hidden = false;
    byId("problem").hidden = false;
  }
}

new Page().load();
