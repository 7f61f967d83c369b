// The tokens of a sample, coloured by their recorded values. No tokenizer is needed: the record has the texts.

import { request } from "./api.js";
import { empty, fill, h, select } from "./dom.js";
import { number, whole } from "./format.js";

const PAGE = 4000;
/** @type {Record<string, {label: string, kind: "low" | "high" | "both" | "mask", about: string, center?: number}>} */
const COLUMNS = {
  logprobs: { label: "log-probability", kind: "low", about: "unlikely tokens stand out" },
  sampled_logprobs: { label: "sampled log-probability", kind: "low", about: "unlikely tokens stand out" },
  old_logprobs: { label: "old log-probability", kind: "low", about: "unlikely tokens stand out" },
  ref_logprobs: { label: "reference log-probability", kind: "low", about: "unlikely tokens stand out" },
  entropy: { label: "entropy", kind: "high", about: "uncertain tokens stand out" },
  ratio: { label: "ratio", kind: "both", about: "green above 1, red below", center: 1 },
  advantage: { label: "advantage", kind: "both", about: "green above 0, red below", center: 0 },
  mask: { label: "mask", kind: "mask", about: "tokens that are not part of the loss are faded" },
};
const labelOf = (name) => COLUMNS[name]?.label ?? name;

/**
 * A panel with the tokens of a sample.
 * @param {{run: string, id: string}} sample
 * @param {{column: string, choose: (column: string) => void}} options
 */
export function tokenView(sample, { column, choose }) {
  const element = h("section", { class: "tokens", "aria-label": "Tokens" }, h("p", { class: "muted" }, "Loading the tokens …"));
  request("samples/tokens", { run: sample.run, sample: sample.id }).then(
    (table) => new TokenPanel(element, table, column, choose),
    (error) => fill(element, empty("The tokens cannot be shown", error.message)),
  );
  return element;
}

class TokenPanel {
  #table;
  #column;
  #choose;
  #shown = PAGE;
  #focused = 0;

  constructor(element, table, column, choose) {
    this.#table = table;
    this.#choose = choose;
    const names = Object.keys(table.columns);
    this.#column = names.includes(column) ? column : (names[0] ?? "");
    this.legend = h("div", { class: "token-legend" });
    this.values = h("div", { class: "token-values", role: "status", "aria-live": "polite" });
    this.texts = h("div", {
      class: "token-texts",
      tabindex: "0",
      role: "group",
      dir: "auto",
      "aria-label": "Tokens; the left and right arrows show the values of each",
      onkeydown: (event) => this.#press(event),
      onmouseover: (event) => this.#look(event.target),
      onfocus: () => this.#show(this.#focused),
    });
    const choices = names.map((name) => [name, labelOf(name)]);
    const note = table.texts === null ? "Their texts were not recorded, or hold a secret; ids are shown." : "";
    fill(
      element,
      h(
        "div",
        { class: "token-tools" },
        h("span", {}, `${whole(table.count)} tokens`),
        choices.length > 0 && select("colour by", choices, this.#column, (name) => this.#colour(name)),
        this.legend,
      ),
      note && h("p", { class: "muted" }, note),
      this.texts,
      this.values,
    );
    this.#draw();
    this.#show(0, false);
  }

  #colour(name) {
    this.#column = name;
    this.#choose(name);
    this.#draw();
  }

  #draw() {
    const values = (this.#table.columns[this.#column] ?? []).map(Number);
    const scale = scaleOf(this.#column, values);
    fill(this.legend, scale && legendOf(this.#column, scale));
    const count = Math.min(this.#shown, this.#table.count);
    const tokens = Array.from({ length: count }, (_, at) => this.#token(at, values[at], scale));
    const rest = this.#table.count - count;
    const more = () => {
      this.#shown += PAGE;
      this.#draw();
    };
    fill(this.texts, tokens, rest > 0 && h("button", { type: "button", onclick: more }, `Show ${whole(Math.min(PAGE, rest))} more`));
  }

  #token(at, value, scale) {
    const text = this.#textOf(at);
    const shown = text === "" ? "∅" : text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t");
    const look = scale && Number.isFinite(value) ? scale.look(value) : { share: 0, sign: "none" };
    return h("span", { class: "token", vars: { share: `${Math.round(look.share * 100)}%` }, data: { at, sign: look.sign } }, shown);
  }

  #textOf(at) {
    if (this.#table.texts) return this.#table.texts[at];
    return this.#table.ids ? `⟨${this.#table.ids[at]}⟩` : "·";
  }

  #look(target) {
    const token = target.closest?.(".token");
    if (token) this.#show(Number(token.dataset.at));
  }

  #press(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || event.target !== this.texts) return;
    event.preventDefault();
    event.stopPropagation();
    const last = Math.min(this.#shown, this.#table.count) - 1;
    this.#show(Math.max(0, Math.min(last, this.#focused + step)));
  }

  /** Show all values of a token. */
  #show(at, marks = true) {
    if (!this.#table.count) return;
    this.#focused = at;
    this.texts.querySelector(".token[aria-current]")?.removeAttribute("aria-current");
    const token = this.texts.querySelector(`.token[data-at="${at}"]`);
    if (marks) {
      token?.setAttribute("aria-current", "true");
      token?.scrollIntoView({ block: "nearest" });
    }
    const { columns, ids } = this.#table;
    const facts = [["token", whole(at + 1)], ["text", JSON.stringify(this.#textOf(at))], ["id", ids && String(ids[at])]];
    for (const [name, values] of Object.entries(columns)) facts.push([labelOf(name), number(values[at], 4)]);
    if (columns.logprobs) facts.push(["probability", number(Math.exp(Number(columns.logprobs[at])), 4)]);
    fill(
      this.values,
      h(
        "dl",
        { class: "facts" },
        facts.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
      ),
    );
  }
}

/** How values become colours: from the values that are not outliers. */
function scaleOf(name, values) {
  const finite = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (!finite.length) return null;
  const at = (share) => finite[Math.min(finite.length - 1, Math.floor(share * finite.length))];
  const kind = COLUMNS[name]?.kind ?? (finite[0] < 0 && finite[finite.length - 1] > 0 ? "both" : "high");
  const center = COLUMNS[name]?.center ?? 0;
  if (kind === "mask") return { kind, low: 0, high: 1, look: (value) => ({ share: 0, sign: value ? "none" : "masked" }) };
  if (kind === "both") {
    const most = Math.max(1e-9, Math.abs(at(0.02) - center), Math.abs(at(0.98) - center));
    const look = (value) => ({ share: Math.min(1, Math.abs(value - center) / most), sign: value < center ? "minus" : "plus" });
    return { kind, low: center - most, high: center + most, look };
  }
  const [low, high] = kind === "low" ? [Math.min(at(0.02), -1e-9), 0] : [Math.min(0, at(0)), Math.max(at(0.98), 1e-9)];
  const share = (value) => Math.max(0, Math.min(1, kind === "low" ? value / low : (value - low) / (high - low || 1)));
  return { kind, low, high, look: (value) => ({ share: share(value), sign: kind }) };
}

function legendOf(name, { kind, low, high }) {
  const about = COLUMNS[name]?.about ?? "";
  if (kind === "mask") return h("span", { class: "muted" }, about);
  return [
    h("span", {}, number(low, 3)),
    h("i", { class: "token-scale", data: { kind }, role: "img", "aria-label": `Colours from ${number(low, 3)} to ${number(high, 3)}` }),
    h("span", {}, number(high, 3)),
    about && h("span", { class: "muted" }, about),
  ];
}
