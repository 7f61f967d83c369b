// The rules of alerts: those of the server's file, those that were added here, and a form that adds one.

import { request } from "./api.js";
import { empty, fill, h } from "./dom.js";

/**
 * The kinds of rules: the label, the callback, and the argument that takes the limit.
 * @type {Record<string, {label: string, use: string, limit?: string, unit?: string}>}
 */
const CONDITIONS = {
  above: { label: "is above", use: "alert", limit: "above" },
  below: { label: "is below", use: "alert", limit: "below" },
  finite: { label: "is NaN or infinite", use: "alert" },
  steps: { label: "does not improve for", use: "no_progress", limit: "steps", unit: "steps" },
  seconds: { label: "does not improve for", use: "no_progress", limit: "seconds", unit: "seconds" },
  differs: { label: "differs from other runs by", use: "alert", limit: "differs_by" },
};

export class AlertRules {
  #store;
  #change;
  #may = true;

  /**
   * @param {import("./run_store.js").RunStore} store
   * @param {(path: string, body: unknown) => Promise<boolean>} change sends a change; whether it was made
   */
  constructor(store, change) {
    [this.#store, this.#change] = [store, change];
    this.list = h("div");
    this.metrics = h("datalist", { id: "rule-metrics" });
    this.runs = h("datalist", { id: "rule-runs" });
    this.metric = h("input", { type: "text", required: true, list: "rule-metrics", placeholder: "metric, such as loss", "aria-label": "Metric" });
    const conditions = Object.entries(CONDITIONS).map(([value, { label, unit }]) => h("option", { value }, unit ? `${label} … ${unit}` : label));
    this.condition = h("select", { "aria-label": "Condition", onchange: () => this.#showFields() }, conditions);
    this.limit = h("input", { type: "number", step: "any", "aria-label": "Limit" });
    this.unit = h("span", { class: "muted" });
    this.reference = h("input", { type: "text", list: "rule-runs", placeholder: "runs: project/* or an id", "aria-label": "Runs to compare with" });
    this.project = h("select", { "aria-label": "Runs of the project" });
    this.times = h("input", { type: "number", min: 1, step: 1, value: 1, "aria-label": "Values in a row" });
    this.inARow = h("label", { class: "field" }, h("span", {}, "values in a row"), this.times);
    this.again = h("input", { type: "checkbox" });
    this.rearm = h("label", { class: "toggle" }, this.again, h("span", {}, "again after it recovered"));
    this.named = h("input", { type: "text", maxlength: 100, placeholder: "name (optional)", "aria-label": "Name of the rule" });
    this.add = h("button", { type: "submit" }, "Add rule");
    this.form = h(
      "form",
      { class: "rule-form", onsubmit: (event) => this.#submit(event) },
      this.metric,
      this.condition,
      this.limit,
      this.unit,
      this.reference,
      h("label", { class: "field" }, h("span", {}, "in"), this.project),
      this.inARow,
      this.rearm,
      this.named,
      this.add,
      this.metrics,
      this.runs,
    );
    this.element = h("div", {}, this.list, this.form);
    this.form.addEventListener("focusin", () => this.#complete(), { once: true });
    this.#showFields();
  }

  /** @param {{name: string, text: string, project: string, author: string}[]} rules @param {boolean} may */
  show(rules, may) {
    this.#may = may;
    this.add.disabled = !may;
    const listed = rules.map((rule) => this.#rule(rule));
    fill(this.list, listed.length ? h("ul", { class: "rules" }, listed) : empty("No rules", "Add one here, or start the server with --alerts FILE."));
    const projects = ["", ...new Set(this.#store.all.map((run) => run.project))];
    const { value, dataset } = this.project;
    if (dataset.key === projects.join("/")) return;
    dataset.key = projects.join("/");
    fill(this.project, projects.map((name) => h("option", { value: name, selected: name === value }, name || "all projects")));
  }

  #rule({ name, text, project, author }) {
    const remove = h(
      "button",
      { type: "button", class: "small", disabled: !this.#may, "aria-label": `Remove ${name}`, data: { key: `remove ${name}` }, onclick: () => this.#change("remove_alert_rule", { name }) },
      "Remove",
    );
    const where = [project && `in ${project}`, author && `by ${author}`].filter(Boolean).join(", ");
    return h("li", {}, name && h("b", {}, name), h("code", {}, text), h("span", { class: "muted" }, name ? where : "from the alert file"), name && remove);
  }

  /** Names of metrics and runs to choose from, loaded when a rule is being written. */
  async #complete() {
    const options = (names) => names.map((value) => h("option", { value }));
    const { all } = this.#store;
    fill(this.runs, options([...new Set(all.map((run) => `${run.project}/*`)), ...all.slice(0, 200).map((run) => run.id)]));
    try {
      const { fields } = await request("run_fields");
      fill(this.metrics, options(fields.filter((each) => each.kind === "metric").map((each) => each.field)));
    } catch {
      // Without names to choose from, a metric is typed.
    }
  }

  #showFields() {
    const { use, limit, unit } = CONDITIONS[this.condition.value];
    this.limit.hidden = !limit;
    this.limit.required = Boolean(limit);
    this.unit.textContent = unit ?? "";
    const differs = limit === "differs_by";
    this.reference.hidden = !differs;
    this.reference.required = differs;
    this.inARow.hidden = this.rearm.hidden = use !== "alert";
  }

  async #submit(event) {
    event.preventDefault();
    const { use, limit, unit, label } = CONDITIONS[this.condition.value];
    const metric = this.metric.value.trim();
    const given = { metric };
    if (limit) given[limit] = Number(this.limit.value);
    if (limit === "differs_by") given.reference = this.reference.value.split(/[\s,]+/).filter(Boolean);
    if (use === "alert" && Number(this.times.value) > 1) given.in_a_row = Number(this.times.value);
    if (use === "alert" && this.again.checked) given.rearm = "recovered";
    const words = [metric, label, limit && this.limit.value, unit, this.project.value && `in ${this.project.value}`];
    const name = this.named.value.trim() || words.filter(Boolean).join(" ").replaceAll("/", " ");
    if (await this.#change("add_alert_rule", { name, use, arguments: given, project: this.project.value })) {
      this.form.reset();
      this.times.value = "1";
      this.#showFields();
    }
  }
}
