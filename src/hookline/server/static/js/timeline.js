// Events on a line of time; the gravest stand out.

import { h } from "./dom.js";
import { clock, dateTime } from "./format.js";

const GRAVE = /error|fail|hang|not_finite|killed|lost|alert/;

/** @param {{run: string, kind: string, time: number, name: string, message: string, step: number | null}[]} events */
export function timeline(events) {
  if (events.length < 2) return null;
  const [first, last] = [events[0].time, events[events.length - 1].time];
  const span = last - first || 1;
  const marks = events.map((event) =>
    h("i", {
      class: "mark",
      data: { grave: String(isGrave(event)), kind: event.kind },
      style: { left: `${((event.time - first) / span) * 100}%` },
      title: `${event.name} · ${dateTime(event.time)}`,
    }),
  );
  return h(
    "div",
    { class: "timeline" },
    h("div", { class: "timeline-line" }, marks),
    h("div", { class: "ends" }, h("span", {}, clock(first)), h("span", {}, clock(last))),
  );
}

export function isGrave(event) {
  return GRAVE.test(event.name);
}
