// The filters of the sample browser. Their whole state is in the address.

import { fill, h, later, select } from "./dom.js";

/** Names of filters, as the server knows them, and their names in the address. */
const NAMES = {
  text: "text",
  lesson: "lesson",
  axis: "axis",
  reward: "reward",
  min_reward: "rmin",
  max_reward: "rmax",
  first_step: "from",
  last_step: "to",
  role: "role",
  finish: "finish",
  label: "label",
  min_version: "vmin",
  max_version: "vmax",
  min_length: "lmin",
  max_length: "lmax",
  order: "order",
};
const WHOLE = ["first_step", "last_step", "min_version", "max_version", "min_length", "max_length"];
const REST = ["role", "finish", "label", "min_version", "max_version", "min_length", "max_length"];
const DEFAULT_ORDER = "-step";
const ORDERS = [
  ["-step", "latest first"],
  ["step", "earliest first"],
  ["-reward", "best first"],
  ["reward", "worst first"],
  ["-advantage", "largest advantage"],
  ["advantage", "smallest advantage"],
  ["-length", "longest first"],
  ["length", "shortest first"],
  ["-version", "newest weights"],
  ["version", "oldest weights"],
  ["lesson", "by lesson"],
  ["prompt", "by prompt"],
];

export class SampleFilters {
  #router;
  #changed;
  #isOpen = false;

  /** @param {any} router @param {() => void} changed */
  constructor(router, changed) {
    this.#router = router;
    this.#changed = changed;
    const given = router.parameters;
    this.values = Object.fromEntries(Object.entries(NAMES).map(([name, short]) => [name, given.get(short) ?? ""]));
    if (!ORDERS.some(([order]) => order === this.values.order)) this.values.order = DEFAULT_ORDER;
    this.#isOpen = REST.some((name) => this.values[name] !== "");
    this.element = h("form", { class: "toolbar filters", onsubmit: (event) => event.preventDefault() });
  }

  /** The parameters of a request. @returns {Record<string, string>} */
  get parameters() {
    const parameters = { ...this.values };
    for (const name of WHOLE) if (parameters[name] !== "") parameters[name] = String(Math.round(Number(parameters[name])));
    return parameters;
  }

  /** Whether the samples are filtered or sorted. */
  get isUsed() {
    return Object.entries(this.values).some(([name, value]) => value !== (name === "order" ? DEFAULT_ORDER : ""));
  }

  /** Change filters as a step that the browser can go back from. */
  change(changes) {
    Object.assign(this.values, changes);
    const shown = ([name, value]) => [NAMES[name], name === "order" && value === DEFAULT_ORDER ? "" : value];
    this.#router.push({ ...Object.fromEntries(Object.entries(changes).map(shown)), sample: "" });
    this.#changed();
  }

  /** @param {any} choices what the samples can be filtered by */
  show(choices) {
    const { lessons, axes, rewards, roles, finishes } = choices;
    const chosen = (label, name, options, all = "all") =>
      select(label, [["", all], ...options.map((each) => (Array.isArray(each) ? each : [each, each]))], this.values[name], (value) =>
        this.change({ [name]: value }),
      );
    const amount = (name, label, aria = label) => this.#field(name, label, { type: "number", step: "any", class: "short", "aria-label": aria });
    const more = h(
      "details",
      { class: "more-filters", open: this.#isOpen, ontoggle: () => (this.#isOpen = more.open) },
      h("summary", {}, "More filters"),
      h(
        "div",
        { class: "toolbar filters" },
        roles.length > 0 && chosen("role", "role", roles),
        finishes.length > 0 && chosen("finish", "finish", finishes),
        chosen("annotation", "label", [["good", "good"], ["bad", "bad"], ["any", "any"]]),
        choices.has_versions && h("span", { class: "pair" }, amount("min_version", "version from"), amount("max_version", "to", "version to")),
        choices.has_lengths && h("span", { class: "pair" }, amount("min_length", "length from"), amount("max_length", "to", "length to")),
      ),
    );
    fill(
      this.element,
      this.#field("text", "Find in texts", { type: "search", "aria-label": "Find in prompts and completions", data: { filter: "text", find: "" } }),
      lessons.length > 0 && chosen("lesson", "lesson", lessons),
      axes.length > 1 && chosen("axis", "axis", axes),
      rewards.length > 0 && chosen("reward", "reward", rewards, "total"),
      h("span", { class: "pair" }, amount("min_reward", "reward from"), amount("max_reward", "to")),
      h("span", { class: "pair" }, amount("first_step", "step from"), amount("last_step", "to")),
      select("order", ORDERS, this.values.order, (order) => this.change({ order })),
      more,
    );
  }

  #field(name, label, attributes) {
    const input = h("input", {
      "aria-label": label,
      placeholder: label,
      value: this.values[name],
      data: { filter: name },
      oninput: later(() => this.change({ [name]: input.value.trim() }), 250),
      ...attributes,
    });
    return input;
  }
}
