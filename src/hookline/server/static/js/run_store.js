// The runs as last received from the server, and the selected ones: from the URL, the last visit, or the latest.

import { firstRuns } from "./api.js";
import { recall, remember } from "./page_state.js";

/**
 * @typedef {{id: string, name: string, project: string, status: string, message: string, experiment: string | null,
 *   group: string | null, arm: string | null, repeat: number | null, stage: string | null, seed: number | null,
 *   started: number | null, ended: number | null, step: number, num_steps: number | null,
 *   seconds_per_step: number | null, eta_seconds: number | null, last_seen: number | null, tags: string[],
 *   problems: string[], metrics: Record<string, number | string | null>}} Run
 */

const RETRY_MS = 3000;

export class RunStore {
  /** @type {Map<string, Run>} */
  byId = new Map();
  /** @type {Run[]} the latest first */
  all = [];
  /** @type {string[]} messages about the index */
  notes = [];
  isKnown = false;
  #names = null;
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

  /** @param {{whole: boolean, changed: Run[], removed: string[], notes: string[]}} news */
  take({ whole, changed, removed, notes }) {
    this.notes = notes;
    const ids = new Set([...removed, ...changed.map((run) => run.id)]);
    if (whole) {
      const kept = new Set(changed.map((run) => run.id));
      for (const id of this.byId.keys()) if (!kept.has(id)) this.byId.delete(id) && ids.add(id);
    }
    for (const id of removed) this.byId.delete(id);
    for (const run of changed) this.byId.set(run.id, run);
    this.all = [...this.byId.values()].sort((a, b) => (b.started ?? 0) - (a.started ?? 0) || (a.id < b.id ? 1 : -1));
    this.#names = null;
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
    const first = this.all[0];
    if (!first) return [];
    const inExperiment = this.all.find((run) => run.experiment !== null);
    const lead = first.experiment === null && inExperiment && isOver(first) ? inExperiment : first;
    if (lead.experiment === null) return [lead.id];
    return this.all
      .filter((run) => run.project === lead.project)
      .map((run) => run.id)
      .slice(0, 30);
  }
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

export class Selection {
  #store;
  #router;
  #ids = null;
  #listeners = new Set();

  /** @param {import("./run_store.js").RunStore} store @param {import("./page_state.js").Router} router */
  constructor(store, router) {
    this.#store = store;
    this.#router = router;
    this.#ids = recall("selection", null);
  }

  /** The ids of the selected runs that exist. */
  get ids() {
    const given = this.#router.parameters.getAll("run");
    const wanted = given.length ? given : (this.#ids ?? []);
    const known = wanted.filter((id) => this.#store.byId.has(id));
    return known.length || given.length || this.#ids?.length === 0 ? known : this.#store.latest();
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
    this.#ids = ids;
    remember("selection", this.#ids);
    this.#router.set({ run: this.#ids });
    for (const listener of [...this.#listeners]) listener();
  }

  /** @param {string[]} ids @param {boolean} on */
  turn(ids, on) {
    const turned = new Set(ids);
    const now = this.ids.filter((id) => !turned.has(id));
    this.set(on ? [...now, ...ids] : now);
  }

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}
