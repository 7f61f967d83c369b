// The sample browser: prompts, completions and rewards; samples of the same group, and a prompt over the training.

import { LatestRequest, request } from "../api.js";
import { empty, fill, h, later, select, throttled } from "../dom.js";
import { number, whole } from "../format.js";
import { RunList } from "../run_list.js";
import { MissingRuns, RunProblems } from "../run_status.js";
import { advantage, completion, histogram, reward, rewardBars } from "../sample_parts.js";

const PAGE = 40;
/** The server's limit per request. */
const MAX_LISTED = 500;
const ORDERS = [
  ["-step", "latest first"],
  ["step", "earliest first"],
  ["-reward", "best first"],
  ["reward", "worst first"],
  ["-advantage", "largest advantage"],
  ["advantage", "smallest advantage"],
];

export class RolloutsView {
  #app;
  #filter;
  #choices = null;
  #samples = [];
  #total = 0;
  #chosen = null;
  #isOther = false;
  #tab = "group";
  #page = new LatestRequest();
  #bars = new LatestRequest();
  #beside = new LatestRequest();
  #unsubscribe = [];

  constructor(app) {
    this.#app = app;
    const given = app.router.parameters;
    this.#filter = {
      text: "",
      lesson: given.get("lesson") ?? "",
      axis: given.get("axis") ?? "",
      reward: "",
      min_reward: "",
      max_reward: "",
      first_step: "",
      last_step: "",
      order: "-step",
    };
    this.list = new RunList(app);
    this.problems = new RunProblems(app);
    this.missing = new MissingRuns(app);
    this.tools = h("form", { class: "toolbar filters", onsubmit: (event) => event.preventDefault() });
    this.spread = h("div", { class: "spread" });
    this.index = h("div", { class: "samples", role: "listbox", "aria-label": "Samples", tabindex: "0" });
    this.count = h("div", { class: "count-line muted" });
    this.detail = h("div", { class: "sample-detail" });
    const left = h("div", { class: "sample-index" }, this.spread, this.count, this.index);
    this.element = h(
      "div",
      { class: "with-side" },
      this.list.element,
      h(
        "section",
        { class: "rollouts" },
        this.missing.element,
        this.problems.element,
        this.tools,
        h("div", { class: "split" }, left, this.detail),
      ),
    );
    const refresh = throttled(() => this.element.isConnected && this.#refresh(), 2000);
    this.#unsubscribe.push(
      app.store.listen((changed) => app.selection.ids.some((id) => changed.has(id)) && refresh()),
      app.selection.listen(() => this.#begin()),
    );
    this.#begin();
  }

  destroy() {
    this.list.destroy();
    this.problems.destroy();
    this.missing.destroy();
    this.#unsubscribe.forEach((stop) => stop());
    [this.#page, this.#bars, this.#beside].forEach((pending) => pending.cancel());
  }

  press(event) {
    const step = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || (event.key.startsWith("Arrow") && document.activeElement !== this.index)) return;
    event.preventDefault();
    const place = this.#samples.findIndex((sample) => this.#isChosen(sample));
    const next = this.#samples[Math.max(0, Math.min(this.#samples.length - 1, place + step))];
    if (next) this.#choose(next);
  }

  async #begin() {
    const ids = this.#app.selection.requested;
    this.#chosen = null;
    this.#samples = [];
    if (!ids.length) return this.#showNothing("Select runs", "Their samples are shown here.");
    try {
      this.#choices = await request("samples/choices", { run: ids });
      const { axes } = this.#choices;
      if (!axes.includes(this.#filter.axis))
        this.#filter.axis = axes.length > 1 ? (["rollout", "train"].find((axis) => axes.includes(axis)) ?? "") : "";
      this.#showTools();
      await this.#load();
    } catch (error) {
      this.#showNothing("Loading the samples failed", error.message);
    }
  }

  /** Load new samples of running runs; the sample being read stays in place. */
  async #refresh() {
    const choices = await request("samples/choices", { run: this.#app.selection.requested }).catch(() => null);
    if (!choices || choices.total === this.#choices?.total) return;
    const before = this.#choices?.total ?? 0;
    this.#choices = choices;
    if (!before) this.#showTools();
    await this.#load(false, Math.max(0, choices.total - before));
  }

  #showTools() {
    const set = (name) => (value) => {
      this.#filter[name] = value;
      this.#find();
    };
    const field = (name, label, attributes) => {
      const input = h("input", {
        "aria-label": label,
        placeholder: label,
        value: this.#filter[name],
        data: { filter: name },
        oninput: later(() => set(name)(input.value.trim()), 250),
        ...attributes,
      });
      return input;
    };
    const amount = (name, label) => field(name, label, { type: "number", step: "any", class: "short" });
    const { lessons, axes, rewards } = this.#choices;
    fill(
      this.tools,
      field("text", "Find in prompts and completions", { type: "search", placeholder: "Find in texts" }),
      lessons.length > 0 &&
        select("lesson", [["", "all"], ...lessons.map((name) => [name, name])], this.#filter.lesson, set("lesson")),
      axes.length > 1 &&
        select("axis", [["", "all"], ...axes.map((name) => [name, name])], this.#filter.axis, set("axis")),
      rewards.length > 0 &&
        select("reward", [["", "total"], ...rewards.map((name) => [name, name])], this.#filter.reward, set("reward")),
      h("span", { class: "pair" }, amount("min_reward", "reward from"), amount("max_reward", "to")),
      h("span", { class: "pair" }, amount("first_step", "step from"), amount("last_step", "to")),
      select("order", ORDERS, this.#filter.order, set("order")),
    );
  }

  #asked() {
    const filter = { ...this.#filter, run: this.#app.selection.requested };
    for (const name of ["first_step", "last_step"])
      if (filter[name] !== "") filter[name] = Math.round(Number(filter[name]));
    return filter;
  }

  /** Apply another filter; the shown sample has to match it. */
  #find() {
    this.#samples = [];
    this.#isOther = true;
    return this.#load();
  }

  /** Load samples: the next page, or all listed ones again plus new ones. */
  async #load(more = false, added = 0) {
    const { order, ...filter } = this.#asked();
    const first = more ? this.#samples.length : 0;
    const count = more ? PAGE : Math.max(PAGE, this.#samples.length + added);
    const read = (offset) => {
      const limit = Math.min(MAX_LISTED, first + count - offset);
      return this.#page.get("samples", { ...filter, order, limit, offset });
    };
    const readAll = async () => {
      const found = await read(first);
      while (found && found.samples.length < Math.min(count, found.total - first)) {
        const next = await read(first + found.samples.length);
        if (!next?.samples.length) return null;
        found.samples.push(...next.samples);
      }
      return found;
    };
    try {
      const [page, bars] = await Promise.all([
        readAll(),
        more ? null : this.#bars.get("samples/histogram", { ...filter, min_reward: "", max_reward: "" }),
      ]);
      if (bars)
        fill(
          this.spread,
          histogram(bars, (low, high) => this.#limit(low, high)),
        );
      if (page) this.#showPage(page, more);
    } catch (error) {
      this.#showNothing("Loading the samples failed", error.message);
    }
  }

  #limit(low, high) {
    const isOn =
      Number(this.#filter.min_reward) === low &&
      Number(this.#filter.max_reward) === high &&
      this.#filter.min_reward !== "";
    Object.assign(this.#filter, isOn ? { min_reward: "", max_reward: "" } : { min_reward: low, max_reward: high });
    this.#showTools();
    this.#find();
  }

  #showPage({ total, samples }, more) {
    this.#samples = more ? [...this.#samples, ...samples] : samples;
    this.#total = total;
    this.count.textContent = `${whole(total)} ${total === 1 ? "sample" : "samples"}`;
    if (!this.#samples.length) {
      const isAny = this.#choices?.total > 0;
      return this.#showNothing(
        isAny ? "No sample matches" : "No samples yet",
        isAny
          ? "Change the filter."
          : "Samples are recorded by loop.log_samples, run.log_samples, rollouts and benchmarks.",
      );
    }
    this.#showIndex();
    const isShown = this.#samples.some((sample) => this.#isChosen(sample));
    if (!this.#chosen || (this.#isOther && !isShown)) this.#choose(this.#samples[0]);
    this.#isOther = false; // from now on the shown sample stays, even if new samples push it out of the list
  }

  #showNothing(title, text) {
    this.#chosen = null;
    fill(this.index);
    fill(this.detail, empty(title, text));
  }

  #showIndex() {
    const rows = this.#samples.map((sample) => this.#row(sample));
    const rest = this.#total - this.#samples.length;
    fill(
      this.index,
      rows,
      rest > 0 &&
        h("button", { type: "button", class: "more-samples", onclick: () => this.#load(true) }, `${whole(rest)} more`),
    );
  }

  #isChosen(sample) {
    return sample.id === this.#chosen?.id && sample.run === this.#chosen?.run;
  }

  #row(sample) {
    return h(
      "button",
      {
        type: "button",
        class: "sample-row",
        role: "option",
        "aria-selected": String(this.#isChosen(sample)),
        onclick: () => this.#choose(sample),
      },
      h("span", { class: "sample-step" }, whole(sample.step)),
      h(
        "span",
        { class: "sample-text" },
        h("span", {}, sample.prompt.slice(-200)),
        h("em", {}, (sample.answer ?? sample.completion).slice(0, 160)),
      ),
      reward(sample.reward),
    );
  }

  #choose(sample) {
    this.#chosen = sample;
    this.#showIndex();
    this.index.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
    this.#showDetail();
  }

  #showDetail() {
    const sample = this.#chosen;
    const facts = [
      ["run", this.#app.store.nameOf(sample.run)],
      ["step", whole(sample.step)],
      ["axis", sample.axis],
      ["lesson", sample.lesson],
      ["group", sample.group],
      ["advantage", sample.advantage === null ? null : number(sample.advantage, 3)],
    ];
    this.beside = h("div", { class: "beside" });
    fill(
      this.detail,
      h(
        "dl",
        { class: "facts" },
        facts
          .filter(([, value]) => value !== null)
          .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
      ),
      h("h4", {}, "Prompt"),
      h("div", { class: "text" }, sample.prompt),
      h("h4", {}, "Completion"),
      completion(sample),
      sample.expected !== null && [h("h4", {}, "Expected"), h("div", { class: "text" }, sample.expected)],
      h("h4", {}, "Rewards"),
      rewardBars(sample),
      Object.keys(sample.extra).length > 0 &&
        h(
          "details",
          { class: "extra" },
          h("summary", {}, "Other fields"),
          h("pre", {}, JSON.stringify(sample.extra, null, 2)),
        ),
      this.#tabs(),
      this.beside,
    );
    this.#showBeside();
  }

  #tabs() {
    const tab = (name, text, isThere) =>
      isThere &&
      h(
        "button",
        {
          type: "button",
          role: "tab",
          "aria-selected": String(this.#tab === name),
          onclick: () => {
            this.#tab = name;
            this.#showDetail();
          },
        },
        text,
      );
    const { group, prompt } = this.#chosen;
    if (group === null) this.#tab = "prompt";
    else if (!isAskable(prompt)) this.#tab = "group";
    if (group === null && !isAskable(prompt)) return null;
    return h(
      "div",
      { class: "tabs", role: "tablist" },
      tab("group", "Group", group !== null),
      tab("prompt", "Prompt over training", isAskable(prompt)),
    );
  }

  async #showBeside() {
    const sample = this.#chosen;
    if (sample.group === null && !isAskable(sample.prompt)) return;
    const asked =
      this.#tab === "group"
        ? [
            "samples",
            {
              run: [sample.run],
              group: sample.group,
              axis: sample.axis,
              first_step: sample.step,
              last_step: sample.step,
              order: "-reward",
              limit: 64,
            },
          ]
        : ["samples/prompt", { run: [sample.run], prompt: sample.prompt, limit: 40 }];
    try {
      const answer = await this.#beside.get(...asked);
      if (!answer || this.#chosen !== sample) return;
      const cards = answer.samples.map((each) => this.#card(each, this.#tab === "prompt"));
      fill(
        this.beside,
        this.#tab === "prompt" &&
          h(
            "p",
            { class: "muted" },
            `${whole(answer.total)} ${answer.total === 1 ? "completion" : "completions"} of this prompt in this run`,
          ),
        h("div", { class: "cards" }, cards),
      );
    } catch (error) {
      fill(this.beside, empty("Loading failed", error.message));
    }
  }

  #card(sample, isOverTraining) {
    const isSame = sample.id === this.#chosen.id;
    return h(
      "article",
      { class: "card", "aria-current": isSame ? "true" : null },
      h(
        "header",
        {},
        reward(sample.reward),
        advantage(sample.advantage),
        isOverTraining && h("span", { class: "muted" }, `step ${whole(sample.step)}`),
      ),
      completion(sample),
    );
  }
}

/** Whether completions of a prompt can be requested: the server limits the length of a text. */
function isAskable(prompt) {
  return prompt !== "" && [...prompt].length <= 4000;
}
