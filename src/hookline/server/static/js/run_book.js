// The runs as the server last told of them, and who wants to know of changes.

/**
 * @typedef {{id: string, name: string, project: string, status: string, message: string, experiment: string | null,
 *   group: string | null, arm: string | null, repeat: number | null, stage: string | null, seed: number | null,
 *   started: number | null, ended: number | null, step: number, num_steps: number | null,
 *   seconds_per_step: number | null, eta_seconds: number | null, last_seen: number | null, tags: string[],
 *   problems: string[], metrics: Record<string, number | string | null>}} Run
 */

const RETRY_MS = 3000;

export class RunBook {
  /** @type {Map<string, Run>} */
  byId = new Map();
  /** @type {Run[]} the latest first */
  all = [];
  /** @type {string[]} what there is to say about the store */
  notes = [];
  isKnown = false;
  #names = null;
  #listeners = new Set();

  /** @param {(changed: Set<string>) => void} listener @returns {() => void} which ends it */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Follow the server's stream. A connection that breaks is made again by the browser, one that was refused by us. */
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
        // After an answer such as 502 of a proxy, behind which the server is being started, the browser gives up.
        if (source.readyState === EventSource.CLOSED) waiting = setTimeout(connect, RETRY_MS);
      });
    };
    connect();
    // A browser opens few connections to a server: tabs that nobody looks at must not hold on to theirs.
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

  /** What a run is called where it may stand beside any other. @param {string} id */
  nameOf(id) {
    this.#names ??= new Map(distinctNames(this.all));
    return this.#names.get(id) ?? id;
  }

  /** The runs that the page is about when nobody chose: those of the latest experiment, or the latest run. */
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

/** What a run is called where there are several: its directory says which of an experiment's it is. */
export function shortName(run) {
  return run.experiment === null ? run.name : run.id.slice(run.project.length + 1);
}

/**
 * The ids of runs with their names; with a part of the id where several runs have one name.
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

/** The directory of a run without the day that it may begin with. */
function withoutDate(run) {
  return run.id.slice(run.project.length + 1).replace(/^\d{4}-\d\d-\d\d-(?=.)/, "");
}
