// A configuration as a tree that folds and can be searched; paths and values can be copied.

import { fill, h, later } from "./dom.js";
import { plural } from "./format.js";

/** A level with more entries is cut, so that no recorded value can freeze the page. */
const MAX_ENTRIES = 500;
const MAX_FOUND = 500;
const MAX_TEXT = 2000;
const MAX_DEPTH = 60;
/** Smaller configurations are shown unfolded. */
const OPEN_LEAVES = 80;

/**
 * A button that copies a text. Browsers give pages without HTTPS on other machines no clipboard: there, a selection is
 * copied as the user would.
 * @param {string} label @param {() => string} text
 */
export function copyButton(label, text) {
  const button = h("button", { type: "button", class: "small copy", title: label, "aria-label": label }, "Copy");
  const done = (outcome) => {
    button.textContent = outcome;
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  button.addEventListener("click", async (event) => {
    event.preventDefault(); // it may be in a summary
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(text());
      else copySelected(text());
      done("Copied");
    } catch {
      done("Not allowed");
    }
  });
  return button;
}

function copySelected(text) {
  const field = h("textarea", { class: "hidden", "aria-hidden": "true", value: text });
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (!isCopied) throw new Error("not copied");
}

/** Whether a value has entries. A short list of plain values is one value. */
function isBranch(value) {
  if (Array.isArray(value)) return value.some((each) => typeof each === "object" && each !== null) || value.length > 12;
  return typeof value === "object" && value !== null && Object.keys(value).length > 0;
}

/** The path of an entry, as the comparison of runs and filters name it. */
function pathOf(parent, key, isList) {
  return isList ? `${parent}[${key}]` : parent ? `${parent}.${key}` : key;
}

/**
 * All values with their paths. A stack instead of a recursion: a recorded configuration may be deep.
 * @param {any} config
 * @returns {{path: string, value: any}[]}
 */
export function leaves(config) {
  const found = [];
  const stack = [{ path: "", value: config }];
  while (stack.length) {
    const { path, value } = stack.pop();
    if (!isBranch(value)) found.push({ path, value });
    else
      for (const [key, each] of Object.entries(value).toReversed())
        stack.push({ path: pathOf(path, key, Array.isArray(value)), value: each });
  }
  return found;
}

/** A value as text: strings unquoted, so that a copy can be pasted. */
export function valueText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/**
 * The tree with its tools.
 * @param {any} config
 * @param {{find: string, found: (find: string) => void}} state the search, and what to do when it changes
 */
export function configTree(config, { find, found }) {
  const all = leaves(config);
  const count = h("span", { class: "count", role: "status" });
  const body = h("div", { class: "tree", tabindex: "0", role: "region", "aria-label": "Settings" });
  const show = (text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = words.length
      ? all.filter(({ path, value }) => {
          const line = `${path} ${valueText(value)}`.toLowerCase();
          return words.every((word) => line.includes(word));
        })
      : all;
    fill(count, words.length ? `${matching.length} of ${plural(all.length, "setting")}` : plural(all.length, "setting"));
    if (!words.length) fill(body, branch(config, "", 0, all.length <= OPEN_LEAVES));
    else fill(body, matching.slice(0, MAX_FOUND).map((each) => leaf(each.path, each.path, each.value)), !matching.length && h("p", { class: "muted" }, "No setting matches."));
  };
  const search = h("input", {
    type: "search",
    placeholder: "Find a setting or a value",
    "aria-label": "Find a setting",
    value: find,
    data: { find: "" },
    oninput: later(() => {
      found(search.value.trim());
      show(search.value);
    }, 120),
  });
  const unfold = (open) => {
    search.value = "";
    found("");
    fill(body, branch(config, "", 0, open));
    fill(count, plural(all.length, "setting"));
  };
  show(find);
  const tools = [
    h("button", { type: "button", class: "small", onclick: () => unfold(true) }, "Unfold all"),
    h("button", { type: "button", class: "small", onclick: () => unfold(false) }, "Fold all"),
    copyButton("Copy the configuration as JSON", () => JSON.stringify(config, null, 2)),
  ];
  return [h("div", { class: "toolbar" }, search, tools, count), body];
}

/** The entries of a level. Those of a folded one are created when it is opened. */
function branch(value, path, depth, open) {
  if (!isBranch(value)) return leaf(path || "value", path, value);
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  const rows = entries.slice(0, MAX_ENTRIES).map(([key, each]) => {
    const own = pathOf(path, key, isList);
    if (!isBranch(each)) return leaf(key, own, each);
    if (depth >= MAX_DEPTH) return leaf(key, own, JSON.stringify(each));
    const inner = h("div", { class: "tree-inner" });
    const count = Array.isArray(each) ? `${each.length}` : `${Object.keys(each).length}`;
    const make = () => inner.childElementCount || fill(inner, branch(each, own, depth + 1, open));
    if (open) make();
    return h(
      "details",
      { open, data: { path: own }, ontoggle: (event) => event.target.open && make() },
      h("summary", {}, h("span", { class: "key" }, key), h("span", { class: "count" }, count)),
      inner,
    );
  });
  const rest = entries.length - rows.length;
  return [rows, rest > 0 && h("p", { class: "muted" }, `${rest} more entries are not shown: search, or copy all.`)];
}

function leaf(name, path, value) {
  const text = valueText(value) ?? "";
  const shown = text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)} … (${text.length} characters)` : text;
  const kind = value === null ? "null" : typeof value;
  return h(
    "div",
    { class: "tree-leaf", data: { path } },
    h("span", { class: "key" }, name),
    h("span", { class: "value", data: { kind } }, shown === "" ? "\u2423" : shown),
    h("span", { class: "copies" }, copyButton(`Copy the path ${path}`, () => path), copyButton(`Copy the value of ${path}`, () => text)),
  );
}
