// The request of the page as a command and as a program.

import { byId } from "./dom.js";

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A JSON value as Python; strings of JSON are strings of Python. */
function python(value) {
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item)}`).join(", ")}}`;
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(value);
}

export function curlCode(request, base, needsToken) {
  const token = needsToken ? ` \\\n  -H "Authorization: Bearer $ADAPTDEL_TOKEN"` : "";
  return `curl ${shell(new URL("v1/certify", base).href)} \\\n  -H 'Content-Type: application/json'${token} \\\n  -d ${shell(JSON.stringify(request))}`;
}

export function pythonCode(request, base, needsToken) {
  const { text, ...settings } = request;
  const options = Object.entries(settings).map(([name, value]) => `, ${name}=${python(value)}`);
  return [
    ...(needsToken ? ["import os", ""] : []),
    "from adaptdel.serve import Client",
    "",
    `client = Client(${python(new URL(".", base).href)}${needsToken ? ', token=os.environ["ADAPTDEL_TOKEN"]' : ""})`,
    `result = client.certify(${python(text)}${options.join("")})`,
    'print(result.label, result.radius)',
  ].join("\n");
}

export class CodePanel {
  constructor() {
    this.language = "curl";
    this.codes = { curl: "", python: "" };
    const buttons = [...byId("code").querySelectorAll("[data-language]")];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        this.language = button.dataset.language;
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        this.draw();
      });
    }
    byId("copy").addEventListener("click", () => this.copy());
  }

  show(request, needsToken) {
    this.codes = {
      curl: curlCode(request, document.baseURI, needsToken),
      python: pythonCode(request, document.baseURI, needsToken),
    };
    byId("code").hidden = false;
    this.draw();
  }

  hide() {
    byId("code").hidden = true;
  }

  draw() {
    byId("snippet").textContent = this.codes[this.language];
    byId("copy").textContent = `Copy as ${this.language === "curl" ? "curl" : "Python"}`;
    byId("copied").textContent = "";
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.codes[this.language]); // absent without HTTPS, except on localhost
      byId("copied").textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(byId("snippet"));
      byId("copied").textContent = "Selected: press Ctrl+C or ⌘C to copy.";
    }
  }
}
