// The settings of a request: the model's defaults, and what the visitor changed.

import { byId, element } from "./dom.js";
import { confidence } from "./sentences.js";
import { number } from "./tokens.js";

const NAMES = { del: "delete", ins: "insert", sub: "replace" };

export class Settings {
  /** `changed` is called after every change. */
  constructor(changed) {
    this.changed = changed;
    for (const id of ["alpha", "select", "estimate"]) byId(id).addEventListener("input", () => this.check());
    byId("ops").addEventListener("change", () => this.check());
    byId("defaults").addEventListener("click", () => this.use(this.model, this.limits));
  }

  /** Fill in the defaults of a model. */
  use(model, limits) {
    [this.model, this.limits] = [model, limits];
    for (const node of byId("settings").querySelectorAll(".of-votes")) node.hidden = model.votes === null;
    byId("alpha").value = model.votes ? model.alpha : "";
    byId("select").value = model.votes?.select ?? "";
    byId("estimate").value = model.votes?.estimate ?? "";
    for (const id of ["select", "estimate"]) byId(id).max = limits.votes;
    const boxes = Object.keys(NAMES).map((name) => {
      const allowed = model.certified_ops.includes(name);
      const box = element("input", { type: "checkbox", value: name, id: `op-${name}` });
      [box.checked, box.disabled] = [allowed && model.ops.includes(name), !allowed];
      return element("label", { for: `op-${name}` }, [box, ` ${NAMES[name]}${allowed ? "" : " (not with this model)"}`]);
    });
    byId("ops").replaceChildren(byId("ops").firstElementChild, ...boxes);
    this.check();
  }

  /** Whether all fields are valid; each says what is wrong with it. */
  check() {
    const alpha = Number(byId("alpha").value);
    const byVotes = this.model.votes !== null;
    byId("alpha").setCustomValidity(!byVotes || (alpha > 0 && alpha < 1) ? "" : "The error level must be above 0 and below 1, such as 0.05.");
    for (const id of ["select", "estimate"]) {
      const value = Number(byId(id).value);
      const fits = !byVotes || (Number.isInteger(value) && value >= 1 && value <= this.limits.votes);
      byId(id).setCustomValidity(fits ? "" : `An integer from 1 to ${number(this.limits.votes)}.`);
    }
    const ops = this.ops();
    const boxes = [...byId("ops").querySelectorAll("input:enabled")];
    boxes[0]?.setCustomValidity(ops.length ? "" : "Allow at least one kind of edit.");
    byId("help-alpha").textContent =
      alpha > 0 && alpha < 1 ? `How often a promise may be wrong, at most. ${alpha} means ${confidence(alpha)}.` : "A number above 0 and below 1, such as 0.05.";
    this.changed();
    return this.fields().every((field) => field.validity.valid);
  }

  /** Show what is wrong, where it is wrong. */
  complain() {
    const wrong = this.fields().find((field) => !field.validity.valid);
    if (!wrong) return;
    byId("settings").open = true;
    wrong.reportValidity();
  }

  fields() {
    return [byId("alpha"), byId("select"), byId("estimate"), ...byId("ops").querySelectorAll("input")];
  }

  ops() {
    return [...byId("ops").querySelectorAll("input:checked")].map((box) => box.value);
  }

  /** The part of a request that differs from the defaults of the model, and its name if there are several. */
  request(several) {
    const { model } = this;
    const values = several ? { model: model.name } : {};
    const alpha = Number(byId("alpha").value);
    const votes = { select: Number(byId("select").value), estimate: Number(byId("estimate").value) };
    if (model.votes && alpha !== model.alpha) values.alpha = alpha;
    if (model.votes && (votes.select !== model.votes.select || votes.estimate !== model.votes.estimate)) values.votes = votes;
    if (this.ops().join() !== model.ops.join()) values.ops = this.ops();
    return values;
  }
}
