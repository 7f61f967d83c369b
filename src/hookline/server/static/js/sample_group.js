// The samples of a group, or of one prompt over the training, side by side: the answer first, then what it was worth, then
// the text from the first word that differs from the sample being read.

import { h } from "./dom.js";
import { withoutAnsi } from "./ansi.js";
import { withoutReasoning } from "./chat.js";
import { number, whole } from "./format.js";
import { advantage, reward } from "./sample_parts.js";

const SHOWN_PREFIX = 60;
const SHOWN_TEXT = 6000;

/** Where two texts begin to differ: at the start of a word, so that no word is torn apart. */
export function firstDifference(text, other) {
  const length = Math.min(text.length, other.length);
  let at = 0;
  while (at < length && text[at] === other[at]) at += 1;
  if (at === text.length && at === other.length) return at;
  while (at > 0 && /[\p{L}\p{N}_]/u.test(text[at - 1] ?? "") && /[\p{L}\p{N}_]/u.test((text[at] ?? "") + (other[at] ?? ""))) at -= 1;
  // Not between the two halves of a character.
  return at > 0 && /[\udc00-\udfff]/.test(text[at] ?? "") ? at - 1 : at;
}

/**
 * @param {any} sample
 * @param {any} chosen the sample being read
 * @param {{isOverTraining: boolean, label: string, open: (sample: any) => void}} options
 */
export function sampleCard(sample, chosen, { isOverTraining, label, open }) {
  const isSame = sample.id === chosen.id && sample.run === chosen.run;
  const facts = [
    isOverTraining && ["step", whole(sample.step)],
    sample.length !== null && ["tokens", whole(sample.length)],
    sample.finish !== null && ["finish", sample.finish],
    sample.version !== null && ["version", whole(sample.version)],
  ].filter(Boolean);
  const parts = Object.entries(sample.rewards);
  return h(
    "article",
    { class: "card", "aria-current": isSame ? "true" : null },
    h(
      "header",
      {},
      reward(sample.reward),
      advantage(sample.advantage),
      h("span", { class: "label-place" }, labelMark(label)),
      isSame
        ? h("span", { class: "muted" }, "this sample")
        : h("button", { type: "button", class: "link", onclick: () => open(sample) }, "Read"),
    ),
    h("p", { class: "card-answer", dir: "auto" }, answerOf(sample)),
    parts.length > 0 &&
      h("div", { class: "card-facts" }, parts.map(([name, value]) => h("span", { title: name }, `${name} `, h("b", {}, number(value, 3))))),
    facts.length > 0 && h("div", { class: "card-facts" }, facts.map(([name, value]) => h("span", {}, `${name} `, h("b", {}, value)))),
    aligned(sample.completion, isSame ? null : chosen.completion),
  );
}

/** The annotation of a sample. @param {string} label */
export function labelMark(label) {
  return label && h("span", { class: "label", data: { label } }, label);
}

/** The answer, or the last line after the reasoning if none was marked. */
export function answerOf(sample) {
  const text = sample.answer ?? withoutReasoning(withoutAnsi(sample.completion)).trimEnd().split("\n").pop() ?? "";
  return text.length > 300 ? `… ${text.slice(-300)}` : text || "no text";
}

/** A text whose beginning, the same as another's, is faded and shortened. */
function aligned(text, other) {
  if (other === null) return h("div", { class: "text", dir: "auto" }, text.slice(0, SHOWN_TEXT));
  const at = firstDifference(text, other);
  if (at === text.length && at === other.length) return h("div", { class: "text", dir: "auto" }, h("span", { class: "same" }, "the same text"));
  const word = /^\s*\S+/u.exec(text.slice(at))?.[0] ?? "";
  const same = at > SHOWN_PREFIX ? `… ${text.slice(at - SHOWN_PREFIX, at)}` : text.slice(0, at);
  return h(
    "div",
    { class: "text", dir: "auto" },
    same && h("span", { class: "same", title: `${whole(at)} characters are the same as in the sample being read` }, same),
    word ? h("mark", { class: "differs", title: "the first difference" }, word) : h("mark", { class: "differs" }, "∎"),
    text.slice(at + word.length, at + word.length + SHOWN_TEXT),
  );
}
