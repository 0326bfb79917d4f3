// Elements without markup in strings: whatever a text contains stays text.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...(Array.isArray(content) ? content : [content]));
  return node;
}

/** An element of HTML with attributes and content: a text, an element or a list of both. */
export const element = (name, attributes = {}, content = []) => filled(document.createElement(name), attributes, content);

const svg = (name, attributes) => filled(document.createElementNS(SVG, name), attributes, []);

/** A scale from 0 to 1 with bars [share, class] over each other, and a mark. */
export function scale(bars, mark = null) {
  const drawing = svg("svg", { viewBox: "0 0 400 26", preserveAspectRatio: "none", "aria-hidden": "true", class: "scale" });
  for (const [share, name] of [[1, "track"], ...bars]) drawing.append(svg("rect", { x: 0, y: 8, width: 400 * share, height: 10, class: name }));
  if (mark !== null) drawing.append(svg("line", { x1: 399 * mark, x2: 399 * mark, y1: 2, y2: 24, class: "needed" }));
  return drawing;
}

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** Words that only screen readers say. */
export const spoken = (text) => element("span", { class: "spoken" }, text);

/** Call `run` once, `wait` milliseconds after the last of several calls. */
export function debounced(run, wait) {
  let timer = 0;
  const call = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), wait);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}
