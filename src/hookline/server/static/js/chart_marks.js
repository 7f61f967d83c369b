// Marks of a chart for what happened to its runs: alerts, checkpoints, evaluations, resumes, commands, failures.

import { LatestRequest } from "./api.js";

/** The kinds of events that are shown, with the sign of their flags. */
export const KINDS = new Map([
  ["alert", "!"],
  ["not_finite", "!"],
  ["hang", "!"],
  ["checkpoint", "C"],
  ["eval", "E"],
  ["resume", "R"],
  ["command", "›"],
]);
const MAX_EVENTS = 1000;

export class RunMarks {
  #request = new LatestRequest();
  #events = [];

  /** @param {string[]} ids @returns {Promise<boolean>} whether there are other events than before */
  async load(ids) {
    const answer = ids.length
      ? await this.#request.get("events", { run: ids, name: [...KINDS.keys()], limit: MAX_EVENTS })
      : { events: [] };
    if (!answer) return false;
    const isOther = answer.events.length !== this.#events.length || answer.events.at(-1)?.time !== this.#events.at(-1)?.time;
    this.#events = answer.events;
    return isOther;
  }

  cancel() {
    this.#request.cancel();
  }

  /**
   * Their places along x; none over a metric.
   * @param {string} x @param {import("./run_store.js").RunStore} store @returns {import("./chart.js").Mark[]}
   */
  over(x, store) {
    const marks = [];
    for (const event of this.#events) {
      const run = store.byId.get(event.run);
      const at = { step: stepOf(event), time: event.time, relative: run?.started && event.time - run.started }[x];
      if (typeof at !== "number") continue;
      const text = `${store.nameOf(event.run)}: ${textOf(event)}`;
      marks.push({ x: at, kind: event.name, sign: KINDS.get(event.name), text });
    }
    return marks;
  }
}

/** The step of an event; a resume has one for each axis that it continues. */
function stepOf({ step, data }) {
  return step ?? (data.steps ? Math.max(...Object.values(data.steps)) : null);
}

function textOf(event) {
  const { name, message, data } = event;
  const step = stepOf(event);
  const details = message || data.message || data.evaluator || data.command || data.reason || "";
  const what = { eval: "evaluation", not_finite: "not finite" }[name] ?? name;
  return [step === null ? what : `${what} at step ${step}`, details].filter(Boolean).join(": ").slice(0, 300);
}
