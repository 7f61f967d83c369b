// The parts of the page of a run: its values with sparklines, checkpoints, artifacts with lineage, sinks, events.

import { h } from "./dom.js";
import { bytes, clock, dateTime, number, whole } from "./format.js";
import { isGrave, timeline } from "./hook_tables.js";
import { address } from "./page_state.js";
import { s } from "./svg_chart.js";
import { end, numberTable } from "./tables.js";

const SPARK = { width: 132, height: 26 };
const MAX_EVENTS = 200;
/** The events that are shown with their reason. */
const LOUD = new Set(["alert", "warning", "error"]);

/** The address of a view of one run. @param {string} view @param {string} id @param {Record<string, string>} [more] */
export function runAddress(view, id, more = {}) {
  return address(view, new URLSearchParams([["run", id], ...Object.entries(more)]));
}

/** A line without axes; values that are not finite are left out. @param {number[]} x @param {number[]} y @param {string} label */
export function sparkline(x, y, label) {
  if (x.length < 2) return h("span", { class: "muted" }, "–");
  const [left, right] = [x[0], x.at(-1)];
  const [low, high] = [Math.min(...y), Math.max(...y)];
  const place = (value, from, to, size) => (to > from ? ((value - from) / (to - from)) * size : size / 2);
  const points = x
    .map((value, at) => {
      const across = place(value, left, right, SPARK.width);
      const up = SPARK.height - 2 - place(y[at], low, high, SPARK.height - 4);
      return `${across.toFixed(1)},${up.toFixed(1)}`;
    })
    .join(" ");
  const box = { viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, width: SPARK.width, height: SPARK.height };
  return s("svg", { class: "spark", role: "img", "aria-label": label, ...box }, s("polyline", { points }));
}

const isOdd = (value) => typeof value === "string";

/**
 * All metrics with their last, best and extreme values.
 * @param {string} id @param {{total: number, metrics: any[]}} found @param {string} find
 */
export function valueTable(id, { total, metrics }, find) {
  const words = find.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = metrics.filter(({ name, axis }) => words.every((word) => `${name} ${axis}`.toLowerCase().includes(word)));
  const rows = shown.map((metric) =>
    h(
      "tr",
      { data: { metric: metric.name } },
      h(
        "th",
        { scope: "row" },
        h("a", { href: runAddress("charts", id) }, metric.name),
        metric.axis !== "train" && h("span", { class: "under" }, metric.axis),
      ),
      h("td", {}, sparkline(metric.x, metric.y, `${metric.name} over steps`)),
      h("td", { class: "end", data: isOdd(metric.last) ? { odd: "" } : {} }, h("b", {}, number(metric.last))),
      end(metric.better ? [number(metric.best), h("span", { class: "under" }, ` ${metric.better}`)] : "–"),
      end(number(metric.min)),
      end(number(metric.max)),
      end(whole(metric.step)),
      end(whole(metric.points)),
      end(metric.not_finite ? h("b", { class: "bad" }, whole(metric.not_finite)) : ""),
    ),
  );
  const heads = ["metric", "", ">last", ">best", ">min", ">max", ">at step", ">values", ">not finite"];
  const rest = total - new Set(metrics.map(({ name }) => name)).size;
  return [
    rows.length
      ? numberTable(heads, rows, { tabindex: "0", role: "region", "aria-label": "Metrics" })
      : h("p", { class: "muted" }, "No metric matches."),
    rest > 0 && h("p", { class: "muted" }, `${whole(rest)} more metrics: see the charts.`),
  ];
}

const STATES = {
  kept: ["finished", "The checkpoint is in the directory of the run."],
  damaged: ["failed", "The checkpoint is in the directory of the run, but is not intact."],
  deleted: ["", "The checkpoint was deleted, as its rule says, or by hand."],
  elsewhere: ["", "The checkpoint was saved outside of the directory of the run, or on another machine."],
};

/** @param {any[]} checkpoints */
export function checkpointTable(checkpoints) {
  const names = [...new Set(checkpoints.flatMap(({ values }) => Object.keys(values)))];
  const rows = checkpoints.toReversed().map((each) => {
    const [status, title] = STATES[each.state] ?? ["", ""];
    return h(
      "tr",
      { data: { checkpoint: each.path, state: each.state } },
      end(each.step === null ? "–" : whole(each.step)),
      names.map((name) => end(number(each.values[name]))),
      h("td", {}, h("span", { class: "status", data: { status }, title }, h("i"), each.state), each.damage && h("span", { class: "under bad" }, ` ${each.damage}`)),
      end(bytes(each.bytes)),
      h("td", {}, each.kind),
      h("td", {}, h("time", {}, dateTime(each.time))),
      h("td", { class: "path" }, each.path),
    );
  });
  const heads = [">step", ...names.map((name) => `>${name}`), "state", ">size", "saved for", "saved", "where"];
  return numberTable(heads, rows, { tabindex: "0", role: "region", "aria-label": "Checkpoints" });
}

/**
 * The artifacts of a run, each with the runs before or behind it.
 * @param {any[]} artifacts @param {(id: string) => string} nameOf
 */
export function artifactList(artifacts, nameOf) {
  return h(
    "ul",
    { class: "run-artifacts" },
    artifacts.map((each) => {
      const name = `${each.artifact}:${each.version}`;
      const open = address("artifacts", new URLSearchParams({ artifact: name }));
      const [before, behind] = ["saved", "used"].map((role) => each.others.filter((other) => other.role === role));
      const here = h("b", { class: "this-run" }, "this run");
      const version = each.exists ? h("a", { class: "lineage-version", href: open }, name) : h("span", { class: "lineage-version", title: "This version was deleted, or is elsewhere." }, name);
      const arrow = () => h("span", { "aria-hidden": "true" }, "→");
      const others = (list) => h("span", { class: "others" }, list.map((other) => otherRun(other, nameOf)));
      const line =
        each.role === "saved"
          ? [here, arrow(), version, behind.length > 0 && [arrow(), others(behind)]]
          : [before.length > 0 && [others(before), arrow()], version, arrow(), here];
      const size = each.exists ? `${bytes(each.bytes)} in ${whole(each.files)} file${each.files === 1 ? "" : "s"}` : "not in this directory";
      const facts = [each.role, each.kind, each.step !== null && `step ${whole(each.step)}`, size].filter(Boolean).join(" · ");
      return h(
        "li",
        { data: { artifact: name, role: each.role } },
        h("div", { class: "lineage" }, line),
        h("span", { class: "under" }, facts),
        each.aliases.map((alias) => [" ", h("span", { class: "chip" }, alias)]),
      );
    }),
  );
}

function otherRun({ run, exists }, nameOf) {
  return exists
    ? h("a", { href: runAddress("run", run), title: run }, nameOf(run))
    : h("span", { class: "muted", title: "This run was deleted, or is elsewhere." }, run);
}

const SINK_STATUS = { ok: "finished", lagging: "stalled" };

/** @param {any[]} sinks @param {((sink: any) => string) | null} [runName] for sinks of several runs */
export function sinkTable(sinks, runName = null) {
  const rows = sinks.map((sink) =>
    h(
      "tr",
      { data: { sink: sink.name } },
      h("th", { scope: "row" }, sink.name, runName && h("span", { class: "under" }, runName(sink))),
      h("td", {}, h("span", { class: "status", data: { status: SINK_STATUS[sink.status] ?? "failed" } }, h("i"), sink.status)),
      end(whole(sink.delivered)),
      end(bytes(sink.behind_bytes)),
      h("td", { class: "wide-text" }, sink.error),
    ),
  );
  return numberTable(["sink", "state", ">records delivered", ">behind", "error"], rows);
}

/** Alerts first, then everything on a timeline and as a list, the latest first. @param {{total: number, events: any[]}} found */
export function eventParts({ total, events }) {
  const loud = events.filter((event) => LOUD.has(event.name)).slice(-10);
  const rows = events
    .toReversed()
    .slice(0, MAX_EVENTS)
    .map((event) =>
      h(
        "tr",
        { data: { grave: String(isGrave(event)), event: event.name } },
        h("td", {}, h("time", { title: dateTime(event.time) }, clock(event.time))),
        end(event.step === null ? "" : whole(event.step)),
        h("th", { scope: "row" }, event.name),
        h("td", { class: "wide-text" }, eventText(event)),
      ),
    );
  const attributes = { class: "scroll tall events", tabindex: "0", role: "region", "aria-label": "Events" };
  return [
    loud.map((event) => {
      const isGravest = [event.name, event.data.severity].some((word) => word === "error" || word === "critical");
      const place = event.step === null ? " " : ` at step ${whole(event.step)}: `;
      return h("p", { class: "message alert", data: { status: isGravest ? "failed" : "stalled" } }, h("b", {}, event.name), place, eventText(event));
    }),
    timeline(events),
    numberTable(["time", ">step", "event", ""], rows, attributes),
    total > rows.length && h("p", { class: "muted" }, `The latest ${rows.length} of ${whole(total)}`),
  ];
}

/** The text of an event: its message, which alerts have among their facts, or all of its facts. */
function eventText({ message, data }) {
  if (message) return message;
  if (typeof data.message === "string" && data.message) return data.message;
  return Object.entries(data)
    .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(" · ");
}
