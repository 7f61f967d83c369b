// What can be done with samples: annotate them, link to them, and export them as training data.

import { request } from "./api.js";
import { download } from "./chart_panel.js";
import { fill, h } from "./dom.js";
import { plural, whole } from "./format.js";
import { address } from "./page_state.js";
import { post } from "./post.js";

const keyOf = (sample) => `${sample.run}\n${sample.sample ?? sample.id}`;

/** The annotations of the selected runs. */
export class Annotations {
  #known = new Map();
  #changed;

  /** @param {() => void} changed */
  constructor(changed) {
    this.#changed = changed;
  }

  /** @param {string[]} runs */
  async load(runs) {
    const { annotations } = await request("samples/annotations", { run: runs });
    this.#known = new Map(annotations.map((each) => [keyOf(each), each]));
  }

  of(sample) {
    return this.#known.get(keyOf(sample)) ?? { label: "", note: "" };
  }

  /** Change the label or the note of a sample. */
  async change(sample, change) {
    const before = this.of(sample);
    const after = { ...before, ...change };
    this.#known.set(keyOf(sample), after);
    this.#changed();
    try {
      const done = await post("actions/annotate_samples", { run: sample.run, samples: [{ sample: sample.id, ...change }] });
      if (!done) throw new Error("Nothing was changed: that needs a token.");
    } catch (error) {
      this.#known.set(keyOf(sample), before);
      this.#changed();
      throw error;
    }
  }
}

/**
 * Buttons to annotate a sample, to link to it, and to show it raw.
 * @param {any} sample
 * @param {{annotations: Annotations, isRaw: boolean, setRaw: (on: boolean) => void}} options
 */
export function sampleBar(sample, { annotations, isRaw, setRaw }) {
  const problem = h("p", { class: "message", role: "alert", hidden: true, data: { status: "failed" } });
  const { label, note } = annotations.of(sample);
  const change = (changes) =>
    annotations.change(sample, changes).catch((error) => {
      const shown = document.querySelector(".sample-bar + .message");
      if (shown instanceof HTMLElement) Object.assign(shown, { textContent: error.message, hidden: false });
    });
  const choice = (name, text, key) =>
    h(
      "button",
      {
        type: "button",
        class: "annotate",
        title: `${text} (${key})`,
        "aria-pressed": String(label === name),
        data: { label: name, key: `annotate-${name}` },
        onclick: () => change({ label: label === name ? "" : name }),
      },
      text,
    );
  const field = h("textarea", {
    "aria-label": "Note",
    rows: "2",
    maxlength: "10000",
    dir: "auto",
    placeholder: "A note about this sample",
    onchange: () => change({ note: field.value }),
  });
  field.value = note;
  const notes = h("details", { class: "note", open: note !== "" }, h("summary", { data: { key: "note" } }, "Note"), field);
  const link = address("rollouts", new URLSearchParams([["run", sample.run], ["sample", sample.id]]));
  const raw = h("button", { type: "button", "aria-pressed": String(isRaw), title: "Show the recorded text (r)", data: { key: "raw" }, onclick: () => setRaw(!isRaw) }, "Raw");
  return [
    h("div", { class: "sample-bar" }, choice("good", "Good", "y"), choice("bad", "Bad", "n"), notes, raw, h("a", { class: "button", href: link, title: "The address of this sample" }, "Link")),
    problem,
  ];
}

/**
 * Export of all samples that match the filters.
 * @param {() => Record<string, any>} parameters returns those of a request
 */
export function exportMenu(parameters) {
  const status = h("span", { class: "muted", role: "status" });
  const save = async (format) => {
    fill(status, "Exporting …");
    try {
      const { rows, left_out: left } = await request("samples/export", { ...parameters(), format });
      const note = left ? ` The first 10,000 samples were read; ${whole(left)} more match: use hookline samples export.` : "";
      if (!rows.length) return fill(status, `Nothing to export.${note}`);
      download(new Blob([rows.map((row) => `${JSON.stringify(row)}\n`).join("")], { type: "application/jsonl" }), `${format}.jsonl`);
      return fill(status, `${plural(rows.length, "row")}.${note}`);
    } catch (error) {
      return fill(status, error.message);
    }
  };
  const button = (format, text, title) => h("button", { type: "button", title, onclick: () => save(format) }, text);
  return h(
    "details",
    { class: "export" },
    h("summary", {}, "Export"),
    h(
      "div",
      { class: "toolbar" },
      button("sft", "For SFT", "JSON lines with messages, or prompt and completion; without samples annotated as bad"),
      button("preference", "Preferences", "JSON lines with prompt, chosen and rejected: one pair for each group"),
      status,
    ),
  );
}
