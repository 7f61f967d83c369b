// The runs as last received from the server, and the selected ones: from the URL, the last visit, or the latest.

import { LatestRequest, firstRuns } from "./api.js";
import { throttled } from "./dom.js";
import { address, recall, remember } from "./page_state.js";
import { assignRunColours } from "./theme.js";

/**
 * @typedef {{id: string, name: string, project: string, status: string, message: string, experiment: string | null,
 *   group: string | null, arm: string | null, repeat: number | null, stage: string | null, seed: number | null,
 *   started: number | null, ended: number | null, step: number, num_steps: number | null,
 *   seconds_per_step: number | null, eta_seconds: number | null, last_seen: number | null, tags: string[],
 *   notes: string, archived: boolean, problems: string[], metrics: Record<string, number | string | null>}} Run
 */

const RETRY_MS = 3000;
/** How many selected runs the address of the table names: more of them are remembered only. */
const MAX_NAMED = 100;

export class RunStore {
  /** @type {Map<string, Run>} */
  byId = new Map();
  /** @type {Run[]} the latest first */
  all = [];
  /** @type {string[]} messages about the index */
  notes = [];
  isKnown = false;
  #names = null;
  #coloured = 0;
  #listeners = new Set();

  /** @param {(changed: Set<string>) => void} listener @returns {() => void} unsubscribes */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Follow the server's stream. The browser reconnects after a network error; after an HTTP error we do. */
  follow(liveChanged) {
    let source, waiting;
    const close = () => {
      clearTimeout(waiting);
      source?.close();
    };
    const connect = () => {
      close();
      source = this.#connect(liveChanged);
      source.addEventListener("error", () => {
        // After an error such as a proxy's 502 while the server starts, the browser gives up.
        if (source.readyState === EventSource.CLOSED) waiting = setTimeout(connect, RETRY_MS);
      });
    };
    connect();
    // Browsers limit connections per server: hidden tabs must not hold on to theirs.
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : connect()));
    addEventListener("pagehide", close);
  }

  #connect(setLive) {
    const source = new EventSource("/api/stream");
    source.addEventListener("open", () => setLive(true));
    source.addEventListener("error", () => setLive(false));
    source.addEventListener("beat", () => setLive(true));
    source.addEventListener("runs", (event) => {
      setLive(true);
      this.take(JSON.parse(event.data));
    });
    return source;
  }

  /**
   * Apply an event. Unless it is whole, a known run has only its id and the fields that changed.
   * @param {{whole: boolean, changed: (Partial<Run> & {id: string})[], removed: string[], notes: string[]}} news
   */
  take({ whole, changed, removed, notes }) {
    this.notes = notes;
    const known = new Set(this.byId.keys());
    const ids = new Set([...removed, ...changed.map((run) => run.id)]);
    if (whole) {
      const kept = new Set(changed.map((run) => run.id));
      for (const id of this.byId.keys()) if (!kept.has(id)) this.byId.delete(id) && ids.add(id);
    }
    for (const id of removed) this.byId.delete(id);
    // A new object each time: views compare objects to find out what changed.
    for (const run of changed) {
      const before = whole ? {} : this.byId.get(run.id);
      this.byId.set(run.id, /** @type {Run} */ ({ ...before, ...run }));
    }
    this.all = [...this.byId.values()].sort((a, b) => (b.started ?? 0) - (a.started ?? 0) || (a.id < b.id ? 1 : -1));
    this.#names = null;
    if (this.byId.size !== this.#coloured || [...ids].some((id) => !known.has(id))) assignRunColours(this.all);
    this.#coloured = this.byId.size;
    this.isKnown = true;
    for (const listener of [...this.#listeners]) listener(ids);
  }

  /** The name of a run, unique among all. @param {string} id */
  nameOf(id) {
    this.#names ??= new Map(distinctNames(this.all));
    return this.#names.get(id) ?? id;
  }

  /** The default selection: the runs of the latest experiment, or the latest run. */
  latest() {
    const listed = this.all.filter((run) => !run.archived);
    const first = listed[0];
    if (!first) return [];
    const inExperiment = listed.find((run) => run.experiment !== null);
    const lead = first.experiment === null && inExperiment && isOver(first) ? inExperiment : first;
    if (lead.experiment === null) return [lead.id];
    return listed
      .filter((run) => run.project === lead.project)
      .map((run) => run.id)
      .slice(0, 30);
  }
}

/** As many runs as the server compares. */
const MAX_COMPARED = 50;

/** The address of a comparison of runs. @param {string[]} ids */
export function compareAddress(ids) {
  return address("compare", new URLSearchParams(ids.slice(0, MAX_COMPARED).map((id) => ["run", id])));
}

export function isOver(run) {
  return run.status !== "running" && run.status !== "stalled";
}

/** The short name of a run; within an experiment its directory's name. */
export function shortName(run) {
  return run.experiment === null ? run.name : run.id.slice(run.project.length + 1);
}

/**
 * The ids and names of runs; with part of the id if several runs have the same name.
 * @param {Run[]} runs @returns {[string, string][]}
 */
export function distinctNames(runs) {
  const namesakes = new Map();
  for (const run of runs) {
    const name = shortName(run);
    if (!namesakes.has(name)) namesakes.set(name, []);
    namesakes.get(name).push(run);
  }
  return [...namesakes].flatMap(([name, own]) => own.map((run) => [run.id, distinct(name, run, own)]));
}

function distinct(name, run, namesakes) {
  if (namesakes.length < 2) return name;
  if (run.id.endsWith(`/${name}`)) return run.id;
  const part = withoutDate(run);
  return `${name} · ${namesakes.filter((other) => withoutDate(other) === part).length > 1 ? run.id : part}`;
}

/** The directory's name of a run, without a leading date. */
function withoutDate(run) {
  return run.id.slice(run.project.length + 1).replace(/^\d{4}-\d\d-\d\d-(?=.)/, "");
}

/**
 * The selected runs: those that the address names with `run`, or that match its `where` and `project`; otherwise those
 * that were selected last, or the latest.
 */
export class Selection {
  #store;
  #router;
  #ids = null;
  #matching = { filter: "", ids: [] };
  #request = new LatestRequest();
  #listeners = new Set();

  /** @param {import("./run_store.js").RunStore} store @param {import("./page_state.js").Router} router */
  constructor(store, router) {
    this.#store = store;
    this.#router = router;
    this.#ids = recall("selection", null);
    store.listen(throttled(() => this.#match(), 2000));
  }

  /** The filter in the address: runs that match it are selected. */
  get filter() {
    const { parameters, view } = this.#router;
    if (parameters.has("run") || view === "runs") return ""; // the filter of the table selects nothing
    const [project, where] = [parameters.get("project"), parameters.get("where")];
    return [project && `project = ${JSON.stringify(project)}`, where && (project ? `(${where})` : where)]
      .filter(Boolean)
      .join(" and ");
  }

  /** The address was changed: request the runs that match its filter. */
  async follow() {
    if (this.filter !== this.#matching.filter) await this.#match();
  }

  async #match() {
    const { filter } = this;
    if (!filter) {
      this.#matching = { filter, ids: [] };
      return;
    }
    let ids = [];
    try {
      const found = await this.#request.get("matching_runs", { where: filter });
      if (!found) return;
      ids = found.ids;
    } catch {
      // The table of runs shows the filter's error; no run matches it here.
    }
    const isNew = filter !== this.#matching.filter || ids.join("\n") !== this.#matching.ids.join("\n");
    this.#matching = { filter, ids };
    if (isNew) this.#changed();
  }

  #changed() {
    for (const listener of [...this.#listeners]) listener();
  }

  /** The ids of the runs that a person selected, and that exist: without those that are shown by default. */
  get chosen() {
    const given = this.#router.parameters.getAll("run");
    const wanted = this.filter ? this.#matching.ids : given.length ? given : (this.#ids ?? []);
    return wanted.filter((id) => this.#store.byId.has(id));
  }

  /** The ids of the selected runs that exist; by default the latest. */
  get ids() {
    const { chosen } = this;
    const isEmpty = this.filter || this.#router.parameters.has("run") || this.#ids?.length === 0;
    return chosen.length || isEmpty ? chosen : this.#store.latest();
  }

  /** The ids in the URL that no run has. */
  get missing() {
    return this.#router.parameters.getAll("run").filter((id) => !this.#store.byId.has(id));
  }

  /** The ids for requests: all, or the first that the server accepts at once. */
  get requested() {
    return firstRuns(this.ids);
  }

  get runs() {
    return this.ids.map((id) => this.#store.byId.get(id));
  }

  /** @param {string[]} ids */
  set(ids) {
    // In the table, no tick means that nothing is selected; beside charts, it means that none is to be shown.
    this.#ids = ids.length || this.#router.view !== "runs" ? ids : null;
    remember("selection", this.#ids);
    if (this.#router.view === "runs") this.#router.set({ run: ids.length > MAX_NAMED ? null : ids });
    else this.#router.set({ run: this.#ids, where: null, project: null });
    this.#changed();
  }

  /** @param {string[]} ids @param {boolean} on @param {string[]} [before] those that are selected now */
  turn(ids, on, before = this.ids) {
    const turned = new Set(ids);
    const others = before.filter((id) => !turned.has(id));
    this.set(on ? [...others, ...ids] : others);
  }

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}
