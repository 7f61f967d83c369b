// The filter language as far as the page needs it while it is typed: the server parses filters.

const TOKEN =
  /\s*(?:(?<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[smhd]?(?![\w/]))|(?<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?<quoted>`[^`]+`)|(?<name>[A-Za-z_][\w./:@-]*)|(?<symbol><=|>=|!=|==|!~|[=<>~(),]))/y;
const COMPARISONS = ["=", "==", "!=", "<", "<=", ">", ">=", "~", "!~", "contains"];
const PLAIN = /^[\p{L}\p{N}_./:@+-]+$/u;
const RESERVED = ["and", "or", "not", "in", "is", "contains"];

/** @typedef {{kind: string, text: string, start: number, end: number}} Token */

/** The tokens of a filter up to the first character that cannot begin one. @param {string} text @returns {Token[]} */
export function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  for (let match = TOKEN.exec(text); match; match = TOKEN.exec(text)) {
    const [kind, token] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    found.push({ kind, text: token, start: TOKEN.lastIndex - token.length, end: TOKEN.lastIndex });
  }
  return found;
}

/**
 * What may come at a place of a filter.
 * @param {string} text up to the place
 * @param {string[]} functions
 * @returns {{kind: "name" | "metric" | "operator" | "value" | "state" | "joint" | "none", prefix: string, field: string}}
 *   and the text that is completed
 */
export function completionAt(text, functions) {
  const all = tokens(text);
  const last = all.at(-1);
  const isOpen = last?.kind === "name" && last.end === text.length;
  const rest = text.slice(last?.end ?? 0).trimStart();
  const prefix = isOpen ? last.text : rest;
  let [kind, field, pending] = ["name", "", ""];
  for (const token of isOpen ? all.slice(0, -1) : all) {
    const word = token.kind === "name" ? token.text.toLowerCase() : token.text;
    if (kind === "name") {
      if (word === "(" || word === "not") continue;
      if (token.kind === "text") kind = "joint";
      else [kind, field, pending] = ["operator", token.text, token.text];
    } else if (kind === "operator" && word === "(" && functions.includes(field)) [kind, pending] = ["metric", `${field}(`];
    else if (kind === "metric") {
      pending += token.text;
      if (word === ")") [kind, field] = ["operator", pending];
    } else if (kind === "operator") kind = word === "is" ? "state" : COMPARISONS.includes(word) ? "value" : word === "in" ? "list" : kind;
    else if (kind === "value" || (kind === "state" && word !== "not") || (kind === "list" && word === ")")) kind = "joint";
    else if (kind === "joint" && (word === "and" || word === "or")) kind = "name";
  }
  // An odd character, such as a quote that is open where a name belongs.
  if (prefix && !isOpen && !["value", "list", "name"].includes(kind)) kind = "none";
  return { kind: /** @type {any} */ (kind === "list" ? "value" : kind), prefix, field };
}

/** A filter from the typed text: plain words are searched for. @param {string} text */
export function asFilter(text) {
  const words = text.trim().split(/\s+/).filter(Boolean);
  const arePlain = words.length > 0 && words.every((word) => PLAIN.test(word) && !RESERVED.includes(word.toLowerCase()));
  return arePlain ? words.map((word) => JSON.stringify(word)).join(" and ") : text.trim();
}

/** The parts of a filter that are joined by "and"; the whole if it is joined by "or". @param {string} text */
export function conjuncts(text) {
  const parts = [];
  let [depth, start] = [0, 0];
  for (const token of tokens(text)) {
    if (token.text === "(") depth += 1;
    else if (token.text === ")") depth -= 1;
    else if (depth === 0 && token.kind === "name" && token.text.toLowerCase() === "or") return [text.trim()];
    else if (depth === 0 && token.kind === "name" && token.text.toLowerCase() === "and") {
      parts.push(text.slice(start, token.start).trim());
      start = token.end;
    }
  }
  return [...parts, text.slice(start).trim()].filter(Boolean);
}

/** A filter for all of some filters. @param {string[]} filters */
export function joined(filters) {
  const given = filters.filter(Boolean);
  if (given.length < 2) return given[0] ?? "";
  const hasOr = (text) => tokens(text).some((token) => token.kind === "name" && token.text.toLowerCase() === "or");
  return given.map((text) => (hasOr(text) && conjuncts(text)[0] === text ? `(${text})` : text)).join(" and ");
}
