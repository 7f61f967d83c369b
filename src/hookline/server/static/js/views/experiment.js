// An experiment: its arms compared, their curves, and benchmark scores.

import { LatestRequest, NoAnswerError, firstRuns, request } from "../api.js";
import { ChartPanel } from "../chart_panel.js";
import { empty, failed, fill, h, select, throttled } from "../dom.js";
import { ExperimentControl } from "../experiment_control.js";
import { armTable, benchmarkTable, differenceTable } from "../experiment_tables.js";
import { whole } from "../format.js";
import { groupColour } from "../metric_lines.js";
import { address } from "../page_state.js";
import { RunProblems, statusBadge } from "../run_status.js";
import { completion, reward } from "../sample_parts.js";
import { legendChips } from "../tables.js";
import { listenToTheme } from "../theme.js";

export class ExperimentView {
  #app;
  #project;
  #metric = "";
  #stage = null;
  #curve = "";
  #found = null;
  #names = [];
  #request = new LatestRequest();
  #panel = null;
  #unsubscribe = [];
  #shownFor = "";

  constructor(app) {
    this.#app = app;
    const given = app.router.parameters;
    this.#project = given.get("experiment");
    this.#stage = given.get("stage");
    this.#metric = given.get("metric") ?? "";
    this.#curve = given.get("curve") ?? "";
    this.problems = new RunProblems(app, () => (this.#found?.runs ?? []).map((id) => app.store.byId.get(id)));
    this.tools = h("div", { class: "toolbar" });
    this.arms = h("section", {});
    this.control = new ExperimentControl();
    this.curves = h("section", {});
    this.scores = h("section", {});
    this.predictions = h("section", {});
    this.element = h(
      "div",
      { class: "page experiment" },
      this.tools,
      this.problems.element,
      this.arms,
      this.control.element,
      this.curves,
      this.scores,
      this.predictions,
    );
    const refresh = throttled(() => this.element.isConnected && this.#load(), 2000);
    this.#unsubscribe.push(
      app.store.listen(
        (changed) => [...changed].some((id) => !this.#project || id.startsWith(`${this.#project.split("@")[0]}/`)) && refresh(),
      ),
      listenToTheme(() => this.#panel?.draw()),
    );
    this.#load();
  }

  destroy() {
    this.#unsubscribe.forEach((stop) => stop());
    this.problems.destroy();
    this.#request.cancel();
    this.#panel?.destroy();
    this.control.destroy();
  }

  async #load() {
    try {
      const { experiments } = await request("experiments");
      if (this.#project && !experiments.some((each) => each.project === this.#project))
        return this.#showMissing(experiments);
      if (!experiments.length) return this.#showNothing();
      this.#project ??= experiments[0].project;
      const parameters = { project: this.#project, metric: this.#metric, stage: this.#stage };
      const found = await this.#request.get("experiment", parameters);
      if (!found) return;
      this.#found = found;
      const { metrics } = this.#ids.length ? await request("metrics", { run: firstRuns(this.#ids) }) : { metrics: [] };
      const curves = metrics.filter((each) => each.points > each.runs && each.texts < each.points);
      this.#names = [...new Set(curves.map((each) => each.name))].filter((name) => !name.includes("hooks/"));
      this.problems.show();
      this.#show(experiments);
      this.#shownFor = this.#question;
    } catch (error) {
      if (error instanceof NoAnswerError && this.#shownFor === this.#question) return;
      this.#shownFor = "";
      fill(this.arms, failed(error, () => this.#load(), "Loading the experiment failed"));
    }
  }

  /** The state that selects the content. */
  get #question() {
    return JSON.stringify([this.#project, this.#metric, this.#stage]);
  }

  /** The experiment in the URL does not exist; do not show another one instead. */
  #showMissing(experiments) {
    this.#panel?.destroy();
    this.#panel = null;
    this.#found = null;
    this.problems.show();
    [this.curves, this.scores, this.predictions].forEach((part) => fill(part));
    fill(this.tools, experiments.length > 0 && this.#chooser(experiments, [["", "choose one"]]));
    fill(this.arms, empty(`There is no experiment ${this.#project}.`));
  }

  #chooser(experiments, before = []) {
    const choices = [...before, ...experiments.map((each) => [each.project, each.name])];
    return select("experiment", choices, this.#project, (value) => {
      this.#project = value || null;
      this.#metric = this.#curve = "";
      this.#stage = null;
      this.#app.router.push({ experiment: value, stage: null, metric: null, curve: null });
      this.#load();
    });
  }

  #showNothing() {
    fill(this.tools);
    fill(
      this.arms,
      empty("No experiments yet", "An experiment compares arms over repeats: hookline run experiment.yaml"),
    );
  }

  #show(experiments) {
    const found = this.#found;
    const own = experiments.find((each) => each.project === this.#project);
    const change = (set) => (value) => {
      set(value);
      this.#load();
    };
    fill(
      this.tools,
      this.#chooser(experiments),
      found.stages.length > 1 &&
        select(
          "stage",
          found.stages.map((name) => [name, name]),
          found.stage,
          change((value) => {
            this.#stage = value;
            this.#metric = this.#curve = ""; // another stage may have other metrics
            this.#app.router.push({ stage: value, metric: null, curve: null });
          }),
        ),
      found.metrics.length > 0 &&
        select(
          "metric",
          found.metrics.map((name) => [name, name]),
          found.metric ?? "",
          change((value) => {
            this.#metric = this.#curve = value;
            this.#app.router.push({ metric: value, curve: null });
          }),
        ),
      h(
        "span",
        { class: "statuses" },
        Object.entries(own?.statuses ?? {}).map(([status, count]) =>
          h("span", {}, statusBadge(status), h("b", {}, ` ${count}`)),
        ),
      ),
      h(
        "a",
        {
          class: "button",
          href: address("charts", new URLSearchParams(found.runs.map((id) => ["run", id]))),
        },
        "All charts",
      ),
    );
    this.#showArms(found);
    this.control.show(this.#project);
    this.#showCurves(found);
    this.#showScores(found);
    this.#showPredictions(found);
  }

  /** The runs of the current stage. */
  get #ids() {
    const { runs, stage } = this.#found;
    return runs.filter((id) => (this.#app.store.byId.get(id)?.stage ?? null) === stage);
  }

  #colour(arm) {
    return groupColour([this.#found.name, arm, this.#found.stage]);
  }

  #showArms(found) {
    const about = found.stage === null ? null : h("span", { class: "count" }, `after the stage ${found.stage}`);
    const differ = found.differences.length > 0 && [h("h3", {}, "Differences"), differenceTable(found)];
    const problems = found.problems.map((problem) =>
      h("p", { class: "message", data: { status: "stalled" } }, problem),
    );
    fill(
      this.arms,
      h("h2", {}, "Arms", about),
      armTable(found, (arm) => this.#colour(arm)),
      differ,
      problems,
    );
  }

  /** The number of runs in the curves, if not all. */
  #curveCount() {
    const drawn = firstRuns(this.#ids).length;
    return drawn < this.#ids.length ? `of the first ${whole(drawn)} of ${whole(this.#ids.length)} runs` : "";
  }

  #showCurves(found) {
    if (!this.#names.length) {
      this.#panel?.destroy();
      this.#panel = null;
      return void fill(this.curves);
    }
    const preferred =
      [this.#curve, found.metric, "reward", "val/loss", "loss"].find((name) => this.#names.includes(name)) ??
      this.#names[0];
    if (this.#panel?.name === preferred) return void this.#panel.load();
    this.#panel?.destroy();
    this.#panel = new ChartPanel(preferred, {
      store: this.#app.store,
      ids: () => firstRuns(this.#ids),
      look: () => ({ x: "step", by: "arm", smoothing: 0, logX: false, logY: false, leavesOut: true }),
      onZoom: (zoom) => this.#panel.zoomTo(zoom),
      onLines: (lines) => fill(this.legend, legendChips(lines)),
    });
    this.#panel.isSeen = true;
    this.legend = h("div", { class: "legend" });
    const choose = select(
      "metric",
      this.#names.map((name) => [name, name]),
      preferred,
      (name) => {
        this.#curve = name;
        this.#app.router.push({ curve: name });
        this.#showCurves(this.#found);
      },
    );
    fill(
      this.curves,
      h("h2", {}, "Curves by arm", h("span", { class: "count" }, this.#curveCount())),
      h("div", { class: "toolbar" }, choose, this.legend),
      h("div", { class: "grid one" }, this.#panel.element),
    );
    this.#panel.load();
  }

  #showScores(found) {
    const own = found.benchmarks.filter((score) => score.stage === found.stage);
    const names = [...new Set(own.map((score) => score.benchmark))];
    const tables = names.map((name) => {
      const scores = own.filter((score) => score.benchmark === name);
      return [h("h3", {}, name), benchmarkTable(scores, (arm) => this.#colour(arm))];
    });
    fill(this.scores, names.length > 0 && h("h2", {}, "Benchmarks"), tables);
  }

  async #showPredictions(found) {
    if (!found.benchmarks.length || !this.#ids.length) return void fill(this.predictions);
    const answer = await request("samples", {
      run: firstRuns(this.#ids),
      axis: "final",
      order: "reward",
      limit: 6,
    }).catch(() => null);
    if (!answer?.total) return void fill(this.predictions);
    const cards = answer.samples.map((sample) =>
      h(
        "article",
        { class: "card" },
        h("header", {}, reward(sample.reward), h("span", { class: "muted" }, sample.run.split("/").pop())),
        h("div", { class: "text muted" }, sample.prompt),
        completion(sample),
        sample.expected !== null && h("p", { class: "under" }, "expected ", h("b", {}, sample.expected)),
      ),
    );
    const parameters = new URLSearchParams([...this.#ids.map((id) => ["run", id]), ["axis", "final"]]);
    fill(
      this.predictions,
      h("h2", {}, "Predictions"),
      h(
        "p",
        { class: "muted" },
        `The worst of ${whole(answer.total)}. `,
        h("a", { href: address("rollouts", parameters) }, "Browse all"),
      ),
      h("div", { class: "cards" }, cards),
    );
  }
}
