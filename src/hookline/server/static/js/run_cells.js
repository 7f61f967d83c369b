// The cells of the table of runs. What changes while a run is running comes from the live list, the rest from the table.

import { h } from "./dom.js";
import { ago, dateTime, duration, number, plural, whole } from "./format.js";
import { isOver } from "./run_store.js";

/** A column of the page's own: how far a run is. */
export const PROGRESS = "progress";
const TIMES = ["started", "ended", "last_seen"];
const ODD = ["NaN", "Infinity", "-Infinity"];
const WIDTHS = { [PROGRESS]: 150, started: 96, ended: 96, last_seen: 96, duration: 96, tag: 190, notes: 240, message: 240, git: 92, host: 130 };
const [NARROWEST, WIDEST, CHARACTER, SPACE] = [80, 260, 7.4, 36];

/** @param {string} name @param {any[]} values */
export function columnWidth(name, values) {
  if (name in WIDTHS) return WIDTHS[name];
  const longest = Math.max(name.length + 2, ...values.map((value) => cellText(value, name).length));
  return Math.round(Math.min(WIDEST, Math.max(NARROWEST, longest * CHARACTER + SPACE)));
}

/** @param {string} name */
export function isRightAligned(name) {
  return name === "duration" || TIMES.includes(name);
}

function cellText(value, name) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  if (name === "git") return String(value).slice(0, 8);
  if (typeof value !== "number") return ODD.includes(value) ? number(value) : String(value);
  const short = String(value); // a setting of 0.1 is not 0.1000
  return short.length <= 8 && Number.isFinite(value) ? short.replace("-", "−") : number(value);
}

/**
 * @param {string} name of the column @param {any} value as the server sends it
 * @param {import("./run_store.js").Run | undefined} run as it is now
 * @param {{isBest: boolean, tagged: (tag: string) => HTMLElement}} options
 */
export function runCell(name, value, run, { isBest, tagged }) {
  if (name === PROGRESS) return h("td", { class: "how-far" }, run && progress(run));
  if (name === "tag") {
    const tags = run ? run.tags : value === null ? [] : [value].flat();
    return h("td", { class: "tags" }, tags.map(tagged));
  }
  if (name === "duration") return h("td", { class: "end" }, duration(run ? seconds(run) : value));
  if (TIMES.includes(name)) {
    const since = h("time", { data: { since: value ?? "" }, title: dateTime(value) }, value === null ? "" : ago(value));
    return h("td", { class: "end" }, since);
  }
  const text = cellText(value, name);
  const isNumber = typeof value === "number" || ODD.includes(value);
  return h(
    "td",
    { class: isNumber ? "end" : null, title: text.length > 12 ? String(value) : null, data: { ...(ODD.includes(value) && { odd: "" }), ...(isBest && { best: "" }) } },
    text,
    isBest && h("span", { class: "hidden" }, " (first)"),
  );
}

/** @param {any} aggregate */
export function groupCell(aggregate) {
  if (!aggregate) return h("td", {});
  const { mean, min, max, n, not_finite: odd } = aggregate;
  return h(
    "td",
    { class: "end aggregate", title: `mean of ${plural(n, "run")}: ${number(mean)}, from ${number(min)} to ${number(max)}${odd ? `; ${odd} not finite` : ""}` },
    h("b", {}, number(mean)),
    n > 1 && min !== max && h("small", {}, ` ${number(min, 3)}…${number(max, 3)}`),
    odd > 0 && h("small", { class: "bad" }, ` ${odd} NaN`),
  );
}

function progress(run) {
  const share = run.num_steps ? Math.min(1, run.step / run.num_steps) : isOver(run) ? 1 : 0;
  const text = run.num_steps ? `${whole(run.step)} / ${whole(run.num_steps)}` : plural(run.step, "step");
  const left = !isOver(run) && run.eta_seconds ? ` · ${duration(run.eta_seconds)} left` : "";
  const meter = h("span", { class: "meter", data: { status: run.status } }, h("i", { style: { width: `${share * 100}%` } }));
  return [meter, h("span", { class: "under", title: text + left }, text + left)];
}

function seconds(run) {
  if (!run.started) return null;
  return (isOver(run) ? (run.ended ?? run.last_seen ?? run.started) : Date.now() / 1000) - run.started;
}
