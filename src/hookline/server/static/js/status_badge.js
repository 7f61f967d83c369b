// How a run is, in a word and a colour.

import { h } from "./dom.js";

const MEANING = {
  running: "It is making progress.",
  stalled: "Its process lives, but nothing was completed for a while.",
  finished: "It came to its end.",
  stopped: "It was asked to stop, and did.",
  failed: "It ended with an error.",
  killed: "Its process is gone, and it did not say why.",
};

/** @param {string} status */
export function statusBadge(status) {
  return h(
    "span",
    { class: "status", data: { status }, title: MEANING[status] ?? "" },
    h("i", { "aria-hidden": "true" }),
    status,
  );
}
