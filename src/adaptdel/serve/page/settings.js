// The settings of a request: the model's defaults, and what the visitor changed.

import { byId, element } from "./dom.js";
import { confidence } from "./sentences.js";

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
    for (const id of ["alpha", "select", "estimate"]) byId(id).required = model.votes !== null;
    const boxes = Object.keys(NAMES).map((name) => {
      const allowed = model.certified_ops.includes(name);
      const box = element("input", { type: "checkbox", value: name, id: `op-${name}` });
      [box.checked, box.disabled] = [allowed && model.ops.includes(name), !allowed];
      return element("label", { for: `op-${name}` }, [box, ` ${NAMES[name]}${allowed ? "" : " (not with this model)"}`]);
    });
    byId("ops").replaceChildren(byId("ops").firstElementChild, ...boxes);
    this.check();
  }

  /** Whether all fields are valid; the first one that is not says what is wrong with it if `complain`. */
  check(complain = false) {
    const alpha = Number(byId("alpha").value);
    byId("help-alpha").textContent =
      alpha > 0 && alpha < 1 ? `How often a promise may be wrong, at most. ${alpha} means ${confidence(alpha)}.` : "A number above 0 and below 1, such as 0.05.";
    const fields = byId("settings").querySelectorAll("input:enabled");
    byId("ops").querySelector("input:enabled").setCustomValidity(this.ops().length ? "" : "Allow at least one kind of edit.");
    this.changed();
    const wrong = [...fields].find((field) => !field.checkValidity());
    if (wrong && complain) {
      byId("settings").open = true;
      wrong.reportValidity();
    }
    return !wrong;
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
