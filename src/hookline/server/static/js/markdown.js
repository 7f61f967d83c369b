// Markdown, formulas and highlighted code as elements. Recorded text never becomes unsafe markup:
//
// - markdown-it escapes HTML, and DOMPurify returns a fragment of a few elements without styles and listeners.
// - Links lead only to http and https addresses. Pictures are shown as their description, and nothing is loaded.
// - KaTeX builds elements itself, with limits on sizes, macros and lengths, and without commands that make links.
//
// The libraries are loaded when a text needs them.

import { fill, h } from "./dom.js";

/** Longer texts are shown as plain text, because rendering them could hang the page. */
const MAX_CHARACTERS = 200_000;
const MAX_FORMULA = 4000;
const MAX_FORMULAS = 300;
const MAX_CODE = 50_000;
const MAX_NESTING = 40;
const TAGS = [
  ...["p", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "br", "blockquote", "pre", "code", "ul", "ol", "li", "em", "strong", "s"],
  ...["table", "thead", "tbody", "tr", "th", "td", "a", "span", "div"],
];
const ALLOWED = { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["href", "class", "start"], ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true };

/** @type {{parser: any, purify: any, katex: any, highlight: any}} */
const loaded = { parser: null, purify: null, katex: null, highlight: null };

/** Load what some texts need, for `markdownFragment`. @param {string[]} texts */
export async function loadMarkdown(texts) {
  const hasMath = texts.some((text) => /\$|\\[([]/.test(text));
  const hasCode = texts.some((text) => /```|~~~/.test(text));
  await Promise.all([
    loaded.parser ??
      Promise.all([import("../vendor/markdown-it.js"), import("../vendor/purify.js")]).then(([markdownIt, purify]) => {
        loaded.parser ??= parser(markdownIt.default);
        loaded.purify ??= purify.default;
      }),
    hasMath && !loaded.katex && loadFormulas(),
    hasCode && !loaded.highlight && import("../vendor/highlight.js").then((module) => (loaded.highlight = module.default)),
  ]);
}

async function loadFormulas() {
  await import("../vendor/katex/katex.js");
  loaded.katex = /** @type {any} */ (self).katex;
  const href = "/static/vendor/katex/katex.css";
  if (!document.querySelector(`link[href="${href}"]`)) document.head.append(h("link", { rel: "stylesheet", href }));
}

/** An element with a text as Markdown; the plain text until the libraries are loaded. @param {string} text */
export function markdown(text) {
  const element = h("div", { class: "markdown", dir: "auto" }, h("div", { class: "plain" }, text));
  loadMarkdown([text]).then(
    () => fill(element, markdownFragment(text)),
    () => {}, // offline: the plain text stays
  );
  return element;
}

/** A text as Markdown, after `loadMarkdown`. @param {string} text @returns {Node} */
export function markdownFragment(text) {
  if (text.length > MAX_CHARACTERS) return h("div", { class: "plain" }, text);
  let fragment;
  try {
    fragment = loaded.purify.sanitize(loaded.parser.render(text), ALLOWED);
  } catch {
    return h("div", { class: "plain" }, text);
  }
  for (const link of fragment.querySelectorAll("a")) {
    if (!isWebAddress(link.getAttribute("href") ?? "")) link.removeAttribute("href");
    Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  }
  for (const block of fragment.querySelectorAll("p, li, h1, h2, h3, h4, h5, h6, blockquote, td, th")) block.dir = "auto";
  for (const table of fragment.querySelectorAll("table")) {
    const frame = h("div", { class: "scroll" });
    table.replaceWith(frame);
    frame.append(table);
  }
  fragment.querySelectorAll(".tex").forEach(showFormula);
  fragment.querySelectorAll("pre > code").forEach(highlightCode);
  return fragment;
}

function isWebAddress(text) {
  return /^https?:\/\//i.test(text);
}

/** @param {HTMLElement} element @param {number} place */
function showFormula(element, place) {
  const text = element.textContent ?? "";
  if (!loaded.katex || text.length > MAX_FORMULA || place >= MAX_FORMULAS) return;
  const options = { displayMode: element.classList.contains("display"), throwOnError: true, strict: "ignore", trust: false };
  const shown = h("span");
  try {
    // Without MathML, which KaTeX gives style attributes that the content security policy refuses.
    loaded.katex.render(text, shown, { ...options, maxSize: 20, maxExpand: 200, output: "html" });
    element.replaceChildren(...shown.childNodes);
    element.dir = "ltr";
    element.setAttribute("role", "math");
    element.setAttribute("aria-label", text);
  } catch {
    element.classList.add("invalid"); // the source stays
  }
}

/** @param {HTMLElement} element */
function highlightCode(element) {
  const text = element.textContent ?? "";
  const language = /language-([\w+#-]+)/.exec(element.className)?.[1] ?? "";
  element.className = "";
  /** @type {HTMLElement} */ (element.parentElement).dir = "ltr";
  if (!loaded.highlight?.getLanguage(language) || text.length > MAX_CODE) return;
  element.replaceChildren(code(text, language));
}

/** Highlighted code: elements with class names only. */
function code(text, language) {
  const { value } = loaded.highlight.highlight(text, { language, ignoreIllegals: true });
  return loaded.purify.sanitize(value, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true });
}

function parser(MarkdownIt) {
  const made = new MarkdownIt({ html: false, linkify: false, maxNesting: MAX_NESTING });
  made.validateLink = isWebAddress;
  for (const cell of ["th_open", "td_open"]) made.renderer.rules[cell] = alignedCell;
  made.renderer.rules.image = (tokens, index) =>
    `<span class="muted">${made.utils.escapeHtml(tokens[index].content || "picture")}</span>`;
  const formula = (tokens, index) =>
    `<span class="tex${tokens[index].meta ? " display" : ""}">${made.utils.escapeHtml(tokens[index].content)}</span>`;
  made.renderer.rules.formula = formula;
  made.renderer.rules.formula_block = (tokens, index) => `<p>${formula(tokens, index)}</p>`;
  made.inline.ruler.before("escape", "formula", inlineFormula);
  made.block.ruler.before("fence", "formula_block", blockFormula, { alt: ["paragraph", "blockquote", "list"] });
  return made;
}

/** A cell with a class for its alignment: the content security policy refuses the style of markdown-it, with an error. */
function alignedCell(tokens, index, options, _env, renderer) {
  const token = tokens[index];
  const alignment = /text-align:(right|center)/.exec(token.attrGet("style") ?? "")?.[1];
  token.attrs = alignment ? [["class", alignment === "right" ? "end" : "middle"]] : null;
  return renderer.renderToken(tokens, index, options);
}

const DELIMITERS = [
  ["$$", "$$", true],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
  ["$", "$", false],
];

function inlineFormula(state, silent) {
  const found = DELIMITERS.find(([open]) => state.src.startsWith(open, state.pos));
  if (!found) return false;
  const [open, close, isDisplay] = /** @type {[string, string, boolean]} */ (found);
  const begin = state.pos + open.length;
  // Not in the whole text: one with many beginnings and no end would be searched for each of them.
  const end = begin + state.src.slice(begin, begin + MAX_FORMULA + close.length).indexOf(close);
  if (end <= begin) return false;
  const content = state.src.slice(begin, end);
  // As in pandoc: $5 and $6 are amounts of money.
  if (open === "$" && (/^\s|\s$|\n\s*\n/.test(content) || /\d/.test(state.src[end + 1] ?? ""))) return false;
  if (!silent) Object.assign(state.push("formula", "span", 0), { content, meta: isDisplay });
  state.pos = end + close.length;
  return true;
}

function blockFormula(state, first, last, silent) {
  const line = (at) => state.src.slice(state.bMarks[at] + state.tShift[at], state.eMarks[at]);
  const open = ["$$", "\\["].find((each) => line(first).startsWith(each));
  if (!open) return false;
  const close = open === "$$" ? "$$" : "\\]";
  let end = first;
  const lines = [line(first).slice(2)];
  while (!lines[lines.length - 1].trimEnd().endsWith(close)) {
    end += 1;
    if (end >= last || end - first > 200) return false;
    lines.push(line(end));
  }
  if (silent) return true;
  const content = lines.join("\n").trimEnd().slice(0, -2);
  Object.assign(state.push("formula_block", "p", 0), { content, meta: true, map: [first, end + 1] });
  state.line = end + 1;
  return true;
}
