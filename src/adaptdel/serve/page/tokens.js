// How a text is split into tokens, exactly as adaptdel.text.units splits it.

// The white space of Python's str.split: JavaScript's \s lacks U+001C to U+001F and U+0085, and has U+FEFF.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

/** The units whose tokens the page can count, with the words for one token and for several. */
export const UNITS = {
  word: { one: "word", many: "words", pattern: new RegExp(`[^${SPACE}]+`, "g"), glue: " " },
  char: { one: "character", many: "characters", pattern: /[\s\S]/gu, glue: "" },
};

/** The words for a unit that the page cannot count. */
const OTHER = { one: "token", many: "tokens", pattern: null, glue: "" };

export const unitOf = (name) => UNITS[name] ?? OTHER;

/** The tokens of a text; null for a unit that the page cannot split into. */
export const split = (text, unit) => (unit.pattern ? (text.match(unit.pattern) ?? []) : null);

/** The tokens of a text with the positions where they start and end. */
export const spans = (text, unit) =>
  Array.from(text.matchAll(unit.pattern), (match) => ({ start: match.index, end: match.index + match[0].length, token: match[0] }));

const GROUPED = new Intl.NumberFormat("en");

/** An integer with separated thousands. */
export const number = (value) => GROUPED.format(value);

/** "1 word", "7 words". */
export const count = (value, unit) => `${number(value)} ${value === 1 ? unit.one : unit.many}`;
