// The sample browser: samples as chats with their rewards, groups, tokens and annotations, and a prompt over the training.
// The filters, the sample being read and how it is shown are in the address.

import { LatestRequest, request } from "../api.js";
import { chat, loadFor, messagesOf, questionOf } from "../chat.js";
import { empty, failed, fill, focusKey, focusedKey, h, throttled } from "../dom.js";
import { milliseconds, number, whole } from "../format.js";
import { RunList } from "../run_list.js";
import { MissingRuns, RunProblems } from "../run_status.js";
import { Annotations, exportMenu, sampleBar } from "../sample_actions.js";
import { SampleFilters } from "../sample_filters.js";
import { answerOf, labelMark, sampleCard } from "../sample_group.js";
import { histogram, reward, rewardBars } from "../sample_parts.js";
import { markFound, markPart } from "../text_marks.js";
import { tokenView } from "../token_view.js";

const PAGE = 40;
/** Few enough for each bar to be a target of 24 pixels. */
const BARS = 10;
/** The server's limit per request. */
const MAX_LISTED = 500;
const TABS = [
  ["group", "Group"],
  ["prompt", "Prompt over training"],
];

export class RolloutsView {
  #app;
  #choices = null;
  #samples = [];
  #total = 0;
  #chosen = null;
  /** The sample in the address, until it is loaded. */
  #wanted;
  #isOther = false;
  /** What failed, if anything did: it is tried again when the server is back. @type {(() => any) | null} */
  #retry = null;
  #tab;
  #isRaw;
  #tokens;
  #annotations;
  #page = new LatestRequest();
  #bars = new LatestRequest();
  #beside = new LatestRequest();
  #siblings = [];
  #unsubscribe = [];
  /** Keys with another meaning in other views. */
  keys = new Set(["t"]);

  constructor(app) {
    this.#app = app;
    const given = app.router.parameters;
    this.#wanted = given.get("sample") ?? "";
    this.#tab = given.get("tab") === "prompt" ? "prompt" : "group";
    this.#isRaw = given.get("raw") === "1";
    this.#tokens = given.get("tokens") ?? "";
    this.filters = new SampleFilters(app.router, () => this.#find());
    this.#annotations = new Annotations(() => {
      this.#showIndex();
      if (this.#chosen) this.#showBar();
    });
    this.list = new RunList(app);
    this.problems = new RunProblems(app);
    this.missing = new MissingRuns(app);
    this.spread = h("div", { class: "spread" });
    this.index = h("div", { class: "samples", role: "listbox", "aria-label": "Samples", tabindex: "0" });
    this.count = h("div", { class: "count-line muted", role: "status" });
    this.note = h("p", { class: "muted search-note", role: "status" });
    this.detail = h("div", { class: "sample-detail", tabindex: "-1", role: "region", "aria-label": "Sample" });
    this.more = h("div");
    const menu = exportMenu(() => this.#parameters());
    const left = h("div", { class: "sample-index" }, this.spread, this.count, this.note, this.index, this.more, menu);
    this.element = h(
      "div",
      { class: "with-side" },
      this.list.element,
      h(
        "section",
        { class: "rollouts" },
        this.missing.element,
        this.problems.element,
        this.filters.element,
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
    const { key } = event;
    const sample = this.#chosen;
    const step = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[key];
    if (step && (!key.startsWith("Arrow") || document.activeElement === this.index)) {
      const place = this.#samples.findIndex((each) => this.#isChosen(each));
      const next = this.#samples[Math.max(0, Math.min(this.#samples.length - 1, place + step))];
      if (next) this.#choose(next, "set"); // "back" leaves a walk through the list in one step
    } else if (key === "Enter" && document.activeElement === this.index) this.detail.focus();
    else if (!sample) return;
    else if (key === "g" || key === "o") this.#openTab(key === "g" ? "group" : "prompt");
    else if (key === "[" || key === "]") this.#openSibling(key === "]" ? 1 : -1);
    else if (key === "t") this.#setTokens(this.#tokens || !sample.tokens ? "" : "logprobs");
    else if (key === "r") this.#setRaw(!this.#isRaw);
    else if (key === "y" || key === "n") this.detail.querySelector(`[data-label="${key === "y" ? "good" : "bad"}"].annotate`)?.click();
    else if (key === "m") {
      const note = this.detail.querySelector("details.note");
      if (note) note.open = true;
      note?.querySelector("textarea").focus();
    } else return;
    event.preventDefault();
  }

  async #begin() {
    const ids = this.#app.selection.requested;
    this.#chosen = this.#retry = null;
    this.#samples = [];
    if (!ids.length) return this.#showNothing("Select runs", "Their samples are shown here.");
    if (!this.#choices) this.#showNothing("Loading samples …", "");
    try {
      const hasLink = this.#wanted !== "";
      await this.#openWanted(ids); // before what takes longer in a run with many samples
      if (!this.#choices && !hasLink && !this.filters.isUsed) await this.#preview(ids);
      [this.#choices] = await Promise.all([request("samples/choices", { run: ids }), this.#annotations.load(ids)]);
      const { axes } = this.#choices;
      const { values } = this.filters;
      if (!axes.includes(values.axis) && !hasLink)
        values.axis = axes.length > 1 ? (["rollout", "train"].find((axis) => axes.includes(axis)) ?? "") : "";
      this.filters.show(this.#choices);
      await this.#load();
    } catch (error) {
      this.#fail(error, () => this.#begin());
    }
  }

  /** Show the latest samples of runs that take long to read, until all are read. */
  async #preview(ids) {
    const { samples } = await request("samples/latest", { run: ids, limit: PAGE });
    if (!samples.length || ids.join("\n") !== this.#app.selection.requested.join("\n")) return;
    this.#samples = samples;
    this.#total = samples.length;
    this.count.textContent = "The latest samples";
    this.note.textContent = "The others are still being read. Filters and groups are shown when that is done.";
    this.#showIndex();
    this.#choose(samples[0], null);
  }

  /** Open the sample that the address names, wherever it is in the list. */
  async #openWanted(ids) {
    if (!this.#wanted) return;
    const wanted = this.#wanted;
    this.#wanted = "";
    try {
      const { sample } = await request("samples/sample", { run: ids, sample: wanted });
      if (!sample) throw new Error(`There is no sample ${wanted}: it was deleted, or its run was resumed from before it.`);
      this.#chosen = sample;
      this.#showDetail();
    } catch (error) {
      this.problems.element.after(h("p", { class: "message", role: "alert", data: { status: "failed" } }, error.message));
    }
  }

  /** Load new samples of running runs; the sample being read stays in place. */
  async #refresh() {
    if (this.#retry) return this.#retry();
    const choices = await request("samples/choices", { run: this.#app.selection.requested }).catch(() => null);
    if (!choices || choices.total === this.#choices?.total) return;
    const before = this.#choices?.total ?? 0;
    this.#choices = choices;
    if (!before) this.filters.show(choices);
    await this.#load(false, Math.max(0, choices.total - before));
  }

  /** @returns {Record<string, any>} */
  #parameters() {
    return { ...this.filters.parameters, run: this.#app.selection.requested };
  }

  /** Apply another filter; the shown sample has to match it. */
  #find() {
    this.#samples = [];
    this.#isOther = true;
    return this.#load();
  }

  /** Load samples: the next page, or all listed ones again plus new ones. */
  async #load(more = false, added = 0) {
    const { order, ...filter } = this.#parameters();
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
        more ? null : this.#bars.get("samples/histogram", { ...filter, min_reward: "", max_reward: "", bins: BARS }),
      ]);
      if (bars)
        fill(
          this.spread,
          histogram(bars, (low, high) => this.#limit(low, high)),
        );
      if (page) this.#showPage(page, more);
    } catch (error) {
      this.#fail(error, () => this.#load(more, added));
    }
  }

  #limit(low, high) {
    const { min_reward: from, max_reward: to } = this.filters.values;
    const isOn = from !== "" && Number(from) === low && Number(to) === high;
    this.filters.change(isOn ? { min_reward: "", max_reward: "" } : { min_reward: String(low), max_reward: String(high) });
    this.filters.show(this.#choices);
  }

  #showPage({ total, samples, note }, more) {
    this.#retry = null;
    this.#samples = more ? [...this.#samples, ...samples] : samples;
    this.#total = total;
    this.count.textContent = `${whole(total)} ${total === 1 ? "sample" : "samples"}`;
    this.note.textContent = note;
    if (!this.#samples.length && !(this.#chosen && !this.#isOther)) {
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
    if (!this.#chosen || (this.#isOther && !isShown)) this.#choose(this.#samples[0], null);
    else if (this.#isOther) this.#showDetail(); // for its marks
    this.#isOther = false; // from now on the shown sample stays, even if new samples push it out of the list
  }

  #showNothing(title, text) {
    this.#showInstead(empty(title, text));
  }

  #showInstead(message) {
    this.#chosen = null;
    fill(this.index);
    fill(this.more);
    fill(this.detail, message);
  }

  /** Say what went wrong; the sample that is being read stays. */
  #fail(error, retry) {
    this.#retry = retry;
    const message = failed(error, retry, "Loading the samples failed");
    if (this.#chosen) fill(this.more, message);
    else this.#showInstead(message);
  }

  #showIndex() {
    const rows = this.#samples.map((sample) => this.#row(sample));
    const rest = this.#total - this.#samples.length;
    const { scrollTop } = this.index;
    fill(this.index, rows);
    // Not in the list, whose children are options only.
    fill(
      this.more,
      rest > 0 &&
        h("button", { type: "button", class: "more-samples", onclick: () => this.#load(true) }, `${whole(rest)} more`),
    );
    this.index.scrollTop = scrollTop;
  }

  #isChosen(sample) {
    return sample.id === this.#chosen?.id && sample.run === this.#chosen?.run;
  }

  #row(sample) {
    const { text, reward: name } = this.filters.values;
    const { label, note } = this.#annotations.of(sample);
    const excerpt = h(
      "span",
      { class: "sample-text", dir: "auto" },
      h("span", {}, text && contains(sample.prompt, text) ? around(sample.prompt, text) : questionOf(sample).slice(-200)),
      h("em", {}, text ? around(sample.completion, text) : answerOf(sample).slice(0, 160)),
    );
    if (text) markFound(excerpt, text);
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
      excerpt,
      h(
        "span",
        { class: "sample-end" },
        reward(name ? (sample.rewards[name] ?? null) : sample.reward),
        (label || note) && h("span", { class: "label", data: { label }, title: note }, label || "note"),
      ),
    );
  }

  /** Show a sample. The address names it, unless it was selected by default. */
  #choose(sample, /** @type {"push" | "set" | null} */ how = "push") {
    this.#chosen = sample;
    if (how) this.#app.router[how]({ sample: sample.id });
    this.#showIndex();
    this.index.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
    this.#showDetail();
  }

  #setRaw(isOn) {
    this.#isRaw = isOn;
    this.#app.router.push({ raw: isOn ? "1" : "" });
    this.#showDetail();
  }

  #setTokens(column) {
    this.#tokens = column;
    this.#app.router.push({ tokens: column });
    this.#showDetail();
  }

  #openTab(tab) {
    this.#tab = tab;
    this.#app.router.push({ tab: tab === "group" ? "" : tab });
    this.#showDetail();
    this.detail.querySelector(".tabs")?.scrollIntoView({ block: "nearest" });
  }

  #openSibling(step) {
    const place = this.#siblings.findIndex((each) => this.#isChosen(each));
    const next = this.#siblings[place + step];
    if (next) this.#choose(next);
  }

  #showDetail() {
    const sample = this.#chosen;
    const focused = focusedKey(this.detail);
    this.beside = h("div", { class: "beside" });
    this.bar = h("div");
    const texts = ["prompt", "completion"].map((part) => h("div", { class: `text-of ${part}` }));
    fill(
      this.detail,
      this.#facts(sample),
      this.bar,
      h("h3", {}, "Prompt"),
      texts[0],
      h("h3", {}, "Completion"),
      texts[1],
      sample.expected !== null && [h("h3", {}, "Expected"), h("div", { class: "text", dir: "auto" }, sample.expected)],
      sample.tokens && this.#tokenPart(sample),
      h("h3", {}, "Rewards"),
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
    this.#showBar();
    focusKey(this.detail, focused);
    this.#showTexts(sample, texts);
    this.#showBeside();
  }

  #showBar() {
    const focused = focusedKey(this.bar);
    const setRaw = (on) => this.#setRaw(on);
    fill(this.bar, sampleBar(this.#chosen, { annotations: this.#annotations, isRaw: this.#isRaw, setRaw }));
    focusKey(this.bar, focused);
    const label = this.#annotations.of(this.#chosen).label;
    const card = this.beside.querySelector(".card[aria-current] .label-place");
    if (card) fill(card, labelMark(label));
  }

  #facts(sample) {
    const facts = [
      ["answer", sample.answer],
      ["run", this.#app.store.nameOf(sample.run)],
      ["step", whole(sample.step)],
      ["axis", sample.axis],
      ["lesson", sample.lesson],
      ["group", sample.group],
      ["reward", sample.reward === null ? null : number(sample.reward, 3)],
      ["advantage", sample.advantage === null ? null : number(sample.advantage, 3)],
      ["prompt tokens", sample.prompt_length === null ? null : whole(sample.prompt_length)],
      ["tokens", sample.length === null ? null : whole(sample.length)],
      ["finish", sample.finish],
      ["version", versionsOf(sample)],
      ["forked from", sample.parent],
      ...Object.entries(sample.timings ?? {}).map(([name, seconds]) => [`${name} time`, milliseconds(1000 * Number(seconds))]),
      ["used", sample.rollout === null ? null : this.#usesOf(sample)],
    ];
    return h(
      "dl",
      { class: "facts" },
      facts
        .filter(([, value]) => value !== null)
        .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { dir: "auto" }, value))),
    );
  }

  /** The steps of the training that used a sample, which were recorded after it. */
  #usesOf(sample) {
    const element = h("span", { class: "uses" }, "…");
    request("samples/uses", { run: sample.run, rollout: sample.rollout }).then(
      ({ uses }) => fill(element, usesText(uses)),
      () => fill(element, "unknown"),
    );
    return element;
  }

  #tokenPart(sample) {
    const isOpen = this.#tokens !== "";
    const toggle = h(
      "button",
      {
        type: "button",
        title: "What is known about each token (t)",
        "aria-expanded": String(isOpen),
        data: { key: "tokens" },
        onclick: () => this.#setTokens(isOpen ? "" : "logprobs"),
      },
      isOpen ? "Hide tokens" : "Show tokens",
    );
    const choose = (column) => {
      this.#tokens = column;
      this.#app.router.push({ tokens: column });
    };
    return [h("h3", {}, "Tokens"), toggle, isOpen && tokenView(sample, { column: this.#tokens, choose })];
  }

  /** @param {any} sample @param {HTMLElement[]} elements those of the prompt and of the completion */
  async #showTexts(sample, [promptPart, completionPart]) {
    const parts = [messagesOf(sample, "prompt"), messagesOf(sample, "completion")];
    if (!parts[0].length && !parts[1].length && Array.isArray(sample.extra.messages)) parts[1] = sample.extra.messages;
    if (!this.#isRaw) {
      try {
        await loadFor(parts.flat());
      } catch (error) {
        fill(completionPart, empty("The text cannot be shown", error.message));
        return;
      }
      if (this.#chosen !== sample) return;
    }
    const options = { run: sample.run, isRaw: this.#isRaw };
    fill(promptPart, parts[0].length ? chat(parts[0], options) : h("p", { class: "muted" }, "none"));
    fill(completionPart, chat(parts[1], options), cutNote(sample));
    if (!sample.completion_messages) {
      markPart(completionPart, sample.reasoning, "reasoning");
      markPart(completionPart, sample.answer, "answer", true);
    }
    const { text } = this.filters.values;
    for (const part of [promptPart, completionPart]) {
      markFound(part, text);
      for (const mark of part.querySelectorAll("details mark.found")) mark.closest("details").open = true;
    }
  }

  #tabs() {
    const { group, prompt } = this.#chosen;
    const there = { group: group !== null, prompt: isAskable(prompt) };
    if (!there[this.#tab]) this.#tab = there.group ? "group" : "prompt";
    if (!there.group && !there.prompt) return null;
    const tabs = TABS.filter(([name]) => there[name]).map(([name, text]) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          "aria-selected": String(this.#tab === name),
          data: { key: `tab-${name}` },
          onclick: () => this.#openTab(name),
        },
        text,
      ),
    );
    return h("div", { class: "tabs", role: "tablist" }, tabs);
  }

  async #showBeside() {
    const sample = this.#chosen;
    const { beside } = this;
    this.#siblings = [];
    if (sample.group === null && !isAskable(sample.prompt)) return;
    const isOverTraining = this.#tab === "prompt";
    const steps = { first_step: sample.step, last_step: sample.step };
    const question = isOverTraining
      ? ["samples/prompt", { run: [sample.run], prompt: sample.prompt, limit: 40 }]
      : ["samples", { run: [sample.run], group: sample.group, axis: sample.axis, ...steps, order: "-reward", limit: 64 }];
    try {
      const answer = await this.#beside.get(...question);
      if (!answer || this.#chosen !== sample) return;
      this.#siblings = answer.samples;
      const open = (each) => this.#choose(each);
      const cards = answer.samples.map((each) =>
        sampleCard(each, sample, { isOverTraining, label: this.#annotations.of(each).label, open }),
      );
      fill(
        beside,
        isOverTraining &&
          h(
            "p",
            { class: "muted" },
            `${whole(answer.total)} ${answer.total === 1 ? "completion" : "completions"} of this prompt in this run`,
          ),
        h("div", { class: "cards" }, cards),
      );
    } catch (error) {
      fill(beside, failed(error, () => this.#showBeside()));
    }
  }
}

/** Whether completions of a prompt can be requested: the server limits the length of a text. */
const OUTCOMES = { learnt: "learnt from in", stale: "too old in", equal_rewards: "left out (equal rewards) in", surplus: "left out (surplus) in" };

/** How the training used a sample. @param {{step: number, outcome: string}[]} uses */
function usesText(uses) {
  const byOutcome = Map.groupBy(uses, (use) => use.outcome);
  const parts = [...byOutcome].map(([outcome, own]) => `${OUTCOMES[outcome] ?? `${outcome} in`} ${own.length > 1 ? "steps" : "step"} ${own.map(({ step }) => whole(step)).join(", ")}`);
  return parts.join("; ") || "not yet";
}

/** The versions of the weights that generated a sample. */
function versionsOf({ version, last_version: last }) {
  if (version === null) return null;
  return last === null ? whole(version) : `${whole(version)} to ${whole(last)}`;
}

function isAskable(prompt) {
  return prompt !== "" && [...prompt].length <= 4000;
}

function contains(text, wanted) {
  return text.toLowerCase().includes(wanted.toLowerCase());
}

/** A part of a text around a match, or its beginning. */
function around(text, wanted) {
  const at = text.toLowerCase().indexOf(wanted.toLowerCase());
  return at > 60 ? `… ${text.slice(at - 40, at + 120)}` : text.slice(0, 160);
}

function cutNote(sample) {
  const cut = sample.truncated?.completion;
  return cut ? h("p", { class: "muted" }, `… ${whole(cut)} bytes in all; the rest was not recorded.`) : null;
}
