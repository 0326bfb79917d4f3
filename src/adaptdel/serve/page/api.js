// Calls of the server. Every failure is a Problem with one sentence for the visitor.

/** A failure in one sentence; `status` is that of HTTP, 0 if the server did not answer. */
export class Problem extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

const GONE = "The server does not answer. Check that it is running, then try again. Your text is still here.";
const CUT = "The connection ended before the answer was complete, so nothing is promised. Try again.";

let token = "";

/** Send this token with every call. It is kept in this page only, until it is closed. */
export const useToken = (value) => {
  token = value;
};

export const hasToken = () => token !== "";

async function call(path, body, signal) {
  const headers = { Accept: "application/json, text/event-stream" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body ? JSON.stringify(body) : undefined,
      cache: "no-store",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(GONE);
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  let detail = "";
  try {
    const values = await response.json();
    detail = values.detail ?? values.title ?? "";
  } catch {
    // not a problem document, such as the page of a proxy
  }
  const { status } = response;
  if (status === 429 || status === 503) {
    const seconds = Number(response.headers.get("Retry-After"));
    const wait = seconds > 0 ? ` Try again in ${seconds === 1 ? "a second" : `${seconds} seconds`}.` : " Try again in a moment.";
    return new Problem(sentence(detail || "The server is busy or is shutting down") + wait, status);
  }
  return new Problem(sentence(detail || `The server refused the request (status ${status})`), status);
}

/** A message as a sentence: with a capital letter and a full stop. */
const sentence = (text) => {
  const trimmed = String(text).trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
};

/** The models of the server and its limits. */
export const models = async () => (await call("v1/models")).json();

/** The result of one text; `on(name, data)` is called for every "votes" and "look" event before it. */
export async function certify(request, signal, on = () => {}) {
  const response = await call("v1/certify", { ...request, stream: true }, signal);
  let result = null;
  for await (const { name, data } of events(response)) {
    if (name === "failed") throw new Problem(sentence(data.error), data.status ?? 422);
    if (name === "result") result = data;
    if (name === "done" && result) return result;
    if (name === "votes" || name === "look") on(name, data);
  }
  throw new Problem(CUT);
}

/** The server-sent events of a response. */
async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let waiting = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      waiting += done ? "" : decoder.decode(value, { stream: true });
      const blocks = waiting.split("\n\n");
      waiting = blocks.pop();
      for (const block of blocks) yield parsed(block);
      if (done) return;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem(CUT);
  } finally {
    reader.cancel().catch(() => {}); // tells the server to stop, if it has not ended
  }
}

function parsed(block) {
  const [event, data] = block.split("\n");
  return { name: event.replace("event: ", ""), data: JSON.parse(data.replace("data: ", "")) };
}
