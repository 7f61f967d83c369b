// Differences as coloured lines: a diff that was recorded, and the difference of two texts, unified or side by side.

import { h } from "./dom.js";
import { plural, whole } from "./format.js";

const MAX_LINES = 4000;
const MAX_LINE = 2000;
const CONTEXT = 3;
const MAX_WORDS_LINE = 400;
const COMPARE_MS = 2000;
/** Longer ones are folded. */
const OPEN_LINES = 400;

/**
 * A recorded diff by file; longer ones are cut.
 * @param {string} text
 */
export function recordedDiff(text) {
  const lines = text.replace(/\n$/, "").split("\n");
  const shown = lines.slice(0, MAX_LINES);
  const starts = shown.flatMap((line, place) => (line.startsWith("diff --git ") ? [place] : []));
  if (starts[0] !== 0) starts.unshift(0);
  const files = starts.map((start, place) => recordedFile(shown.slice(start, starts[place + 1])));
  const rest = lines.length - shown.length;
  return h("div", { class: "diff" }, files, rest > 0 && h("p", { class: "muted" }, `${whole(rest)} more lines: download the diff to see them.`));
}

function recordedFile(lines) {
  const path = /^diff --git "?a\/.*?"? "?b\/(.*?)"?$/.exec(lines[0])?.[1];
  const first = lines.findIndex((line) => line.startsWith("@@"));
  const body = path && first > 0 ? lines.slice(first) : path ? lines.slice(1) : lines;
  const count = (sign) => body.filter((line) => line.startsWith(sign)).length;
  const rows = body.map((line) => row(line[0] === "+" ? "added" : line[0] === "-" ? "removed" : line.startsWith("@@") ? "hunk" : "", line));
  return fileBlock(path ?? "", count("+"), count("-"), h("div", { class: "diff-lines" }, rows), rows.length <= OPEN_LINES);
}

function row(kind, text) {
  return h("div", { class: "diff-line", data: { kind } }, cut(text) || " ");
}

function cut(text) {
  return text.length > MAX_LINE ? `${text.slice(0, MAX_LINE)} …` : text;
}

/** A file with the number of its lines. */
export function fileBlock(path, added, removed, body, open, note = "") {
  return h(
    "details",
    { class: "diff-file", open, data: { file: path } },
    h(
      "summary",
      {},
      h("b", {}, path || "changes"),
      added > 0 && h("span", { class: "diff-count", data: { kind: "added" } }, `+${whole(added)}`),
      removed > 0 && h("span", { class: "diff-count", data: { kind: "removed" } }, `−${whole(removed)}`),
      note && h("span", { class: "count" }, note),
    ),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Changes of ${path || "files"}` }, body),
  );
}

/** @returns {Promise<any>} the library, loaded once */
async function library() {
  const scope = /** @type {any} */ (globalThis);
  if (!scope.Diff) {
    // @ts-ignore it sets a global
    await import("../vendor/diff.js");
  }
  return scope.Diff;
}

/**
 * @typedef {{kind: "same" | "changed" | "gap", before?: Side, after?: Side, hidden?: number}} DiffRow
 * @typedef {{line: number, text: string, parts: {value: string, isChanged: boolean}[] | null}} Side
 */

/**
 * The rows of two texts side by side, with a little context.
 * @param {{before: string, after: string, first_line_before: number, first_line_after: number}} region
 * @returns {Promise<DiffRow[]>}
 */
export async function diffRows(region) {
  const Diff = await library();
  const [before, after] = [region.before, region.after].map((text) => (text ? text.replace(/\n$/, "").split("\n") : []));
  const found = Diff.diffArrays(before, after, { timeout: COMPARE_MS }) ?? [
    { value: before, removed: true },
    { value: after, added: true },
  ];
  const lines = { before: region.first_line_before, after: region.first_line_after };
  const side = (which, text) => ({ line: lines[which]++, text: cut(text), parts: null });
  /** @type {DiffRow[]} */
  const rows = [];
  for (let place = 0; place < found.length; place++) {
    const { value, added, removed } = found[place];
    if (!added && !removed) {
      for (const text of value) rows.push({ kind: "same", before: side("before", text), after: side("after", text) });
      continue;
    }
    const next = found[place + 1];
    const isPair = removed && next?.added;
    const [gone, come] = [removed ? value : [], added ? value : isPair ? next.value : []];
    if (isPair) place++;
    for (let at = 0; at < Math.max(gone.length, come.length); at++) {
      const changed = {
        kind: /** @type {const} */ ("changed"),
        before: at < gone.length ? side("before", gone[at]) : undefined,
        after: at < come.length ? side("after", come[at]) : undefined,
      };
      markWords(Diff, changed);
      rows.push(changed);
    }
  }
  return withoutLongContext(rows);
}

/** Mark the words that differ in a line that was changed. */
function markWords(Diff, { before, after }) {
  if (!before || !after || before.text.length > MAX_WORDS_LINE || after.text.length > MAX_WORDS_LINE) return;
  const parts = Diff.diffWordsWithSpace(before.text, after.text);
  const same = parts.filter((part) => !part.added && !part.removed).reduce((sum, part) => sum + part.value.trim().length, 0);
  if (same * 3 < Math.min(before.text.length, after.text.length)) return; // another line, not a changed one
  before.parts = parts.filter((part) => !part.added).map((part) => ({ value: part.value, isChanged: Boolean(part.removed) }));
  after.parts = parts.filter((part) => !part.removed).map((part) => ({ value: part.value, isChanged: Boolean(part.added) }));
}

function withoutLongContext(rows) {
  const near = new Set();
  rows.forEach((each, place) => {
    if (each.kind === "changed") for (let at = place - CONTEXT; at <= place + CONTEXT; at++) near.add(at);
  });
  const kept = [];
  let hidden = 0;
  rows.forEach((each, place) => {
    if (near.has(place)) {
      if (hidden) kept.push({ kind: "gap", hidden });
      hidden = 0;
      kept.push(each);
    } else hidden++;
  });
  if (hidden) kept.push({ kind: "gap", hidden });
  return kept.slice(0, MAX_LINES);
}

/** The number of lines that were added and removed. @param {DiffRow[]} rows */
export function counts(rows) {
  const changed = rows.filter((each) => each.kind === "changed");
  return [changed.filter((each) => each.after).length, changed.filter((each) => each.before).length];
}

/** Rows of a difference as a table. @param {DiffRow[]} rows @param {boolean} isSplit side by side */
export function diffTable(rows, isSplit) {
  const lines = isSplit ? rows.map(splitRow) : unifiedRows(rows);
  return h("table", { class: isSplit ? "diff-table split-diff" : "diff-table" }, h("tbody", {}, lines));
}

function gap(hidden, columns) {
  return h("tr", { class: "diff-gap" }, h("td", { colspan: columns }, `${plural(hidden, "line")} the same`));
}

function content(side) {
  return side.parts ? side.parts.map((part) => (part.isChanged ? h("mark", {}, part.value) : part.value)) : side.text;
}

function splitRow(each) {
  if (each.kind === "gap") return gap(each.hidden, 4);
  const cells = (side, kind) =>
    side
      ? [h("td", { class: "diff-number" }, side.line), h("td", { class: "diff-text", data: { kind: each.kind === "same" ? "" : kind } }, content(side))]
      : [h("td", { class: "diff-number" }), h("td", { class: "diff-text", data: { kind: "none" } })];
  return h("tr", {}, cells(each.before, "removed"), cells(each.after, "added"));
}

/** All removed lines of a change stand before those that were added. */
function unifiedRows(rows) {
  const made = [];
  let waiting = [];
  const flush = () => {
    made.push(...waiting);
    waiting = [];
  };
  const line = (before, after, kind, side) =>
    h(
      "tr",
      {},
      h("td", { class: "diff-number" }, before?.line ?? ""),
      h("td", { class: "diff-number" }, after?.line ?? ""),
      h("td", { class: "diff-text", data: { kind } }, content(side)),
    );
  for (const each of rows) {
    if (each.kind !== "changed") flush();
    if (each.kind === "gap") made.push(gap(each.hidden, 3));
    else if (each.kind === "same") made.push(line(each.before, each.after, "", each.before));
    else {
      if (each.before) made.push(line(each.before, null, "removed", each.before));
      if (each.after) waiting.push(line(null, each.after, "added", each.after));
    }
  }
  flush();
  return made;
}
