// Elements without markup in strings: whatever a text contains stays text.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...(Array.isArray(content) ? content : [content]));
  return node;
}

/** An element of HTML with attributes and content: a text, an element or a list of both. */
export const element = (name, attributes = {}, content = []) => filled(document.createElement(name), attributes, content);

/** An element of SVG. */
export const svg = (name, attributes = {}) => filled(document.createElementNS(SVG, name), attributes, []);

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
