// Marks parts of a text that is shown by several elements: matches of a search, an answer, reasoning.

import { h } from "./dom.js";

const MAX_MARKS = 500;

/**
 * Wrap ranges of an element's text in marks.
 * @param {HTMLElement} element
 * @param {{begin: number, end: number}[]} ranges of its text, in their order, without overlaps
 * @param {string} kind the class of the marks
 */
export function markRanges(element, ranges, kind) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  let begun = 0;
  while (walker.nextNode()) {
    const node = /** @type {Text} */ (walker.currentNode);
    nodes.push({ node, begin: begun, end: begun + node.data.length });
    begun += node.data.length;
  }
  // From the end, so that the places of what comes before stay valid.
  for (const { begin, end } of ranges.slice(0, MAX_MARKS).reverse()) {
    for (const each of nodes.filter((one) => one.begin < end && one.end > begin).reverse()) {
      const range = document.createRange();
      range.setStart(each.node, Math.max(0, begin - each.begin));
      range.setEnd(each.node, Math.min(each.node.data.length, end - each.begin));
      if (range.collapsed) continue;
      range.surroundContents(h("mark", { class: kind, title: kind === "found" ? null : kind }));
    }
  }
}

/** Mark all occurrences of a text, ignoring case. @param {HTMLElement} element @param {string} text */
export function markFound(element, text) {
  if (!text) return;
  const pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
  const ranges = [];
  for (const { index, 0: match } of (element.textContent ?? "").matchAll(pattern)) {
    if (match) ranges.push({ begin: index, end: index + match.length });
    if (ranges.length >= MAX_MARKS) break;
  }
  markRanges(element, ranges, "found");
}

/** Mark the last (or first) occurrence of a part of a text. */
export function markPart(element, part, kind, isLast = false) {
  if (!part) return;
  const text = element.textContent ?? "";
  const begin = isLast ? text.lastIndexOf(part) : text.indexOf(part);
  if (begin >= 0) markRanges(element, [{ begin, end: begin + part.length }], kind);
}
