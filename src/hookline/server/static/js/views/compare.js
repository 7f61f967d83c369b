// Two or more runs side by side: settings, metrics with repeats, code, environment and packages. State in the address:
// `run=` the runs, `base=` the baseline, `find=`, `all=yes`, `code=` the run whose code is shown, `split=` whether side by side.

import { LatestRequest } from "../api.js";
import { counts, diffRows, diffTable, fileBlock } from "../diff_view.js";
import { empty, failed, fill, focusKey, focusedKey, h, later, select, throttled, toggle } from "../dom.js";
import { duration, milliseconds, number, plural, whole } from "../format.js";
import { address } from "../page_state.js";
import { RunList } from "../run_list.js";
import { MissingRuns, statusBadge } from "../run_status.js";
import { isOver } from "../run_store.js";
import { swatch } from "../tables.js";
import { colourOf } from "../theme.js";
import { valueText } from "../config_tree.js";

/** As many as the server compares. */
const MAX_RUNS = 50;
const REFRESH_MS = 3000;
const OPEN_LINES = 300;
/** In a narrower window, code is not shown side by side unless the address says so. */
const SPLIT_WIDTH = 800;
const DIFFERENCES = [
  ["config", "Configuration", "setting"],
  ["environment", "Environment", "fact"],
  ["packages", "Packages", "package"],
];
const KINDS = { before: "only in the first", after: "only in the second", binary: "binary", "left out": "too large to be shown" };

export class CompareView {
  #app;
  #found = null;
  #codeShown = "";
  #request = new LatestRequest();
  #codeRequest = new LatestRequest();
  #unsubscribe = [];

  constructor(app) {
    this.#app = app;
    this.list = new RunList(app, (run) => colourOf(run.id));
    this.missing = new MissingRuns(app);
    this.tools = h("div", { class: "toolbar" });
    this.note = h("p", { class: "muted", role: "status" });
    this.runs = h("div");
    this.parts = Object.fromEntries([...DIFFERENCES.map(([name]) => name), "metrics", "repeats", "code"].map((name) => [name, h("div")]));
    this.board = h(
      "div",
      { hidden: true },
      this.tools,
      this.runs,
      this.#section("config", "Configuration"),
      this.#section("metrics", "Metrics"),
      this.#section("repeats", "Repeats"),
      this.#section("code", "Code"),
      this.#section("environment", "Environment"),
      this.#section("packages", "Packages"),
    );
    this.element = h("div", { class: "with-side compare" }, this.list.element, h("div", { class: "page" }, this.missing.element, this.note, this.board));
    this.search = h("input", {
      type: "search",
      placeholder: "Find in names and values",
      "aria-label": "Find in names and values",
      value: this.#parameter("find"),
      data: { find: "" },
      oninput: later(() => {
        app.router.set({ find: this.search.value.trim() });
        this.#show();
      }, 150),
    });
    const refresh = throttled(() => this.element.isConnected && this.#load(), REFRESH_MS);
    this.#unsubscribe.push(
      app.store.listen((changed) => this.#ids.some((id) => changed.has(id) && !isOver(app.store.byId.get(id) ?? { status: "" })) && refresh()),
      app.selection.listen(() => this.#load()),
    );
    this.#load();
  }

  destroy() {
    this.list.destroy();
    this.missing.destroy();
    this.#request.cancel();
    this.#codeRequest.cancel();
    this.#unsubscribe.forEach((stop) => stop());
  }

  #section(name, title) {
    return h("section", { class: "compare-section", data: { section: name } }, h("h2", {}, title), this.parts[name]);
  }

  #parameter(name) {
    return this.#app.router.parameters.get(name) ?? "";
  }

  get #ids() {
    return this.#app.selection.ids.slice(0, MAX_RUNS);
  }

  get #base() {
    const base = this.#parameter("base");
    return this.#ids.includes(base) ? base : (this.#ids[0] ?? "");
  }

  /** Each choice is a step of the browser's history. */
  #change(changes) {
    this.#app.router.push(changes);
    this.#load();
  }

  async #load() {
    const run = this.#ids;
    if (run.length < 2) {
      this.board.hidden = true;
      this.#found = null;
      return void fill(this.note, empty("Select two or more runs", "The first of them is the baseline that the others are compared with."));
    }
    if (!this.#found) fill(this.note, "Comparing …");
    try {
      const found = await this.#request.get("compare", { run, base: this.#base, all: this.#parameter("all") });
      if (!found) return;
      this.#found = found;
      const left = this.#app.selection.ids.length - run.length;
      fill(this.note, left > 0 && `The first ${run.length} runs are compared; ${whole(left)} more are selected.`);
      this.board.hidden = false;
      this.#show();
    } catch (error) {
      this.board.hidden = true;
      fill(this.note, failed(error, () => this.#load()));
    }
  }

  #name(id) {
    return this.#app.store.nameOf(id);
  }

  #show() {
    const found = this.#found;
    if (!found) return;
    const focused = focusedKey(this.board);
    fill(
      this.tools,
      this.search,
      select("baseline", this.#ids.map((id) => [id, this.#name(id)]), this.#base, (base) => this.#change({ base })),
      toggle("show what is the same", this.#parameter("all") === "yes", (on) => this.#change({ all: on ? "yes" : null })),
    );
    fill(this.runs, this.#runTable(found));
    for (const [name, , word] of DIFFERENCES) fill(this.parts[name], this.#differences(name, word));
    fill(this.parts.metrics, this.#metrics(found));
    const hasArms = found.arms.length > 0;
    this.parts.repeats.parentElement.hidden = !hasArms;
    if (hasArms) fill(this.parts.repeats, this.#repeats(found));
    focusKey(this.board, focused);
    this.#showCode();
  }

  #heads() {
    return this.#found.runs.map((run, place) =>
      h(
        "th",
        { scope: "col", class: "run-column", data: place === this.#found.baseline ? { base: "" } : {} },
        swatch(colourOf(run.id)),
        h("a", { href: address("run", new URLSearchParams([["run", run.id]])), title: run.id }, this.#name(run.id)),
      ),
    );
  }

  #grid(label, first, rows, heads = this.#heads()) {
    return h(
      "div",
      { class: "scroll grid-scroll", tabindex: "0", role: "region", "aria-label": label },
      h("table", { class: "compare-grid" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, first), heads)), h("tbody", {}, rows)),
    );
  }

  #runTable({ runs, baseline }) {
    const line = (name, cell) => h("tr", {}, h("th", { scope: "row" }, name), runs.map((run, place) => h("td", {}, cell(run, place))));
    const remove = (id) => () => this.#app.selection.turn([id], false);
    const rows = [
      line("status", (run) => statusBadge(run.status)),
      line("steps", (run) => (run.num_steps ? `${whole(run.step)} / ${whole(run.num_steps)}` : whole(run.step))),
      line("duration", (run) => duration(run.seconds)),
      line("time per step", (run) => (typeof run.seconds_per_step === "number" ? milliseconds(run.seconds_per_step * 1000) : "–")),
      line("", (run, place) => [
        place === baseline ? h("span", { class: "chip" }, "baseline") : h("button", { type: "button", class: "small", data: { key: `base ${run.id}` }, onclick: () => this.#change({ base: run.id }) }, "Make baseline"),
        h("button", { type: "button", class: "small", "aria-label": `Remove ${this.#name(run.id)}`, onclick: remove(run.id) }, "Remove"),
      ]),
    ];
    return this.#grid("Runs", "", rows);
  }

  #matches(...texts) {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = texts.join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }

  #differences(name, word) {
    const all = this.#found[name];
    const differing = all.filter((each) => each.differs).length;
    const shown = all.filter((each) => this.#matches(each.name, ...each.values.map((value) => valueText(value) ?? "")));
    const isKnown = name === "config" || this.#found.runs.some((run) => run.has_environment);
    if (!isKnown) return h("p", { class: "muted" }, "No environment was recorded.");
    if (!all.length) return h("p", { class: "muted" }, `No ${word} differs.`);
    const rows = shown.map((each) =>
      h(
        "tr",
        { data: { name: each.name, differs: String(each.differs) } },
        h("th", { scope: "row" }, each.name),
        each.values.map((value, place) => this.#valueCell(each, value, place)),
      ),
    );
    const differs = `differ${differing === 1 ? "s" : ""}`;
    // The server sends the others only if they are asked for: their number is not known without.
    const found = differing < all.length ? `${plural(all.length, word)}, ${differing} ${differs}` : `${plural(all.length, word)} ${differs}`;
    return [
      h("p", { class: "muted count-line" }, shown.length < all.length ? `${whole(shown.length)} of ${found}` : found),
      rows.length > 0 ? this.#grid(`Compared: ${name}`, word, rows) : h("p", { class: "muted" }, "Nothing matches the search."),
      this.#unknown(name),
    ];
  }

  #unknown(name) {
    if (name === "config") return null;
    const without = this.#found.runs.filter((run) => !run.has_environment).map((run) => this.#name(run.id));
    return without.length > 0 && h("p", { class: "muted" }, `Without a recorded environment: ${without.join(", ")}.`);
  }

  #valueCell({ values, missing, differs }, value, place) {
    const { baseline } = this.#found;
    const isMissing = missing.includes(place);
    const isOther = differs && (isMissing !== missing.includes(baseline) || JSON.stringify(value) !== JSON.stringify(values[baseline]));
    return h("td", { class: "value", data: isOther ? { other: "" } : {} }, isMissing ? h("span", { class: "muted", title: "This run has none." }, "–") : valueText(value));
  }

  #metrics({ metrics, baseline }) {
    const shown = metrics.filter(({ name, axis }) => this.#matches(name, axis));
    if (!shown.length) return h("p", { class: "muted" }, metrics.length ? "No metric matches." : "No metrics were recorded.");
    const rows = shown.flatMap((metric) => {
      const lines = [["last", metric.last, metric.last_difference], ...(metric.better ? [["best", metric.best, metric.best_difference]] : [])];
      return lines.map(([word, values, differences], at) =>
        h(
          "tr",
          { class: at ? "part" : null, data: { metric: metric.name, row: word } },
          h("th", { scope: "row" }, at === 0 && [metric.name, metric.axis !== "train" && h("span", { class: "muted" }, ` ${metric.axis}`)], h("span", { class: "under" }, word)),
          values.map((value, place) => h("td", {}, value === null ? h("span", { class: "muted" }, "–") : number(value), place !== baseline && delta(differences[place], metric.better))),
        ),
      );
    });
    return [this.#grid("Metrics", "metric", rows), h("p", { class: "muted" }, "Beside a value: the difference from the baseline. The better direction is derived from the name of a metric.")];
  }

  /** The mean and the spread of each arm. */
  #repeats({ arms, metrics, runs, baseline }) {
    const base = runs[baseline].arm;
    const heads = arms.map((arm, place) => h("th", { scope: "col", class: "run-column", data: place === base ? { base: "" } : {} }, arm.name, h("span", { class: "under" }, plural(arm.runs.length, "run"))));
    const rows = metrics
      .filter(({ name, axis }) => this.#matches(name, axis))
      .flatMap((metric) =>
        [["last", metric.arms], ["best", metric.best_arms]]
          .filter(([, values]) => values.length)
          .map(([word, values], at) =>
            h(
              "tr",
              { class: at ? "part" : null, data: { metric: metric.name, row: word } },
              h("th", { scope: "row" }, at === 0 && metric.name, h("span", { class: "under" }, word)),
              values.map((value) => h("td", {}, armValue(value, metric.better))),
            ),
          ),
      );
    return [
      this.#grid("Repeats", "mean ± standard deviation", rows, heads),
      h("p", { class: "muted" }, "Beside a mean: the difference from the arm of the baseline with its 95% interval (Welch), which needs two repeats of both. A colour marks an interval without zero."),
    ];
  }

  async #showCode() {
    const others = this.#ids.filter((id) => id !== this.#base);
    const chosen = others.includes(this.#parameter("code")) ? this.#parameter("code") : others[0];
    const isSplit = this.#parameter("split") ? this.#parameter("split") === "yes" : innerWidth > SPLIT_WIDTH;
    const key = JSON.stringify([this.#base, chosen, isSplit]);
    if (key === this.#codeShown) return;
    const part = this.parts.code;
    if (!part.childElementCount) fill(part, h("p", { class: "muted" }, "Loading …"));
    try {
      const found = await this.#codeRequest.get("compare/code", { before: this.#base, after: chosen });
      if (!found) return;
      const files = await Promise.all(found.files.map((file) => this.#file(file, isSplit)));
      this.#codeShown = key;
      const tools = h(
        "div",
        { class: "toolbar" },
        others.length > 1 && select("run", others.map((id) => [id, this.#name(id)]), chosen, (code) => this.#change({ code })),
        toggle("side by side", isSplit, (on) => this.#change({ split: on ? "yes" : "no" })),
      );
      fill(part, tools, this.#codeNotes(found), files.length > 0 && h("div", { class: "diff" }, files), found.left_out > 0 && h("p", { class: "muted" }, `${plural(found.left_out, "more file")} differ.`));
    } catch (error) {
      fill(part, failed(error, () => this.#showCode()));
    }
  }

  #codeNotes({ before, after, same_commit: isSame, same_files: same, files }) {
    const states = [before, after];
    const notes = [];
    const commits = states.map((state) => state.commit.slice(0, 10) || "unknown");
    if (isSame) notes.push(h("p", {}, "Both runs were started from commit ", h("code", {}, commits[0]), before.branch && ` (${before.branch})`, "."));
    else if (before.commit || after.commit)
      notes.push(
        h("p", { class: "commits" }, "The runs were started from different commits: ", h("code", {}, commits[0]), " → ", h("code", {}, commits[1]), ". ", h("code", {}, `git diff ${commits[0]} ${commits[1]}`), " shows what lies between them; below are the changes that were not committed."),
      );
    else notes.push(h("p", { class: "muted" }, "No commit was recorded for these runs."));
    for (const state of states) if (state.problem) notes.push(h("p", { class: "message", data: { status: "stalled" } }, `${this.#name(state.run)}: ${state.problem}`));
    if (!files.length && isSame) notes.push(h("p", { class: "muted" }, "Their code is the same."));
    if (same) notes.push(h("p", { class: "muted" }, `${plural(same, "file")} changed in the same way in both.`));
    return notes;
  }

  async #file(file, isSplit) {
    const note = [KINDS[file.kind], file.is_patch && "as changes against different commits"].filter(Boolean).join(", ");
    const regions = await Promise.all(file.regions.map(diffRows));
    const rows = regions.flat();
    const [added, removed] = counts(rows);
    return fileBlock(file.path, added, removed, regions.map((each) => diffTable(each, isSplit)), rows.length <= OPEN_LINES, note);
  }
}

/** The difference from the baseline, coloured where it is known what is better. */
function delta(difference, better, isClear = true) {
  if (difference === null || difference === undefined) return null;
  const size = typeof difference === "number" ? difference : NaN;
  const good = better && isClear && size !== 0 && Number.isFinite(size) ? (size < 0) === (better === "min") : null;
  const sign = size > 0 ? "+" : size === 0 ? "±" : "";
  return h("span", { class: "delta", data: good === null ? {} : { good: String(good) } }, ` ${sign}${number(difference, 3)}`);
}

function armValue({ n, mean, std, difference, interval }, better) {
  if (mean === null) return h("span", { class: "muted" }, "–");
  const isClear = interval !== null && (interval[0] > 0 || interval[1] < 0);
  return [
    number(mean),
    std !== null && h("span", { class: "muted" }, ` ± ${number(std, 2)}`),
    h("span", { class: "under" }, ` n = ${n}`),
    difference !== null && h("div", {}, delta(difference, better, isClear), interval !== null && h("span", { class: "under" }, ` [${number(interval[0], 3)}, ${number(interval[1], 3)}]`)),
  ];
}
