// What can be done with the runs that are selected in the table: links to their views, and buttons that change them.

import { h } from "./dom.js";
import { address } from "./page_state.js";
import { archive, deleteRuns, editRuns } from "./run_actions.js";
import { compareAddress } from "./run_store.js";

const MAX_NAMED = 500;

/**
 * @param {import("./run_store.js").Selection} selection @param {string[]} ids the selected runs
 * @param {import("./run_store.js").Run[]} all the latest first
 */
export function selectionLinks(selection, ids, all) {
  const latest = all.find((run) => !run.archived);
  return [
    latest && h("a", { class: "button", href: chartAddress([latest.id]) }, "Latest run"),
    ids.length > 1 && h("a", { class: "button", href: compareAddress(ids) }, "Compare"),
    ids.length > 0 && h("button", { type: "button", onclick: () => selection.set([]) }, "Clear selection"),
    ids.length > 0 && h("a", { class: "button primary", href: chartAddress(ids) }, `Charts of ${ids.length} selected`),
  ];
}

/**
 * Buttons that change the selected runs.
 * @param {import("./run_store.js").RunStore} store @param {string[]} ids @param {() => string[] | null} matching returns
 *   the runs in the table, null until they are known
 * @param {import("./post.js").Permissions} permissions
 * @param {{done: () => void, failed: (error: Error) => void}} acts
 */
export function changeButtons(store, ids, matching, { edits, reason }, { done, failed }) {
  if (!edits || !ids.length) return reason && h("span", { class: "muted", title: reason }, "read-only");
  const areArchived = ids.every((id) => store.byId.get(id).archived);
  const button = (label, act, disabled = false) => h("button", { type: "button", disabled, onclick: act }, label);
  const archiveAll = async () => {
    try {
      if (await archive(ids, !areArchived)) done();
    } catch (error) {
      failed(error);
    }
  };
  return [
    button("Edit …", () => editRuns(store, ids, done)),
    button(areArchived ? "Unarchive" : "Archive", archiveAll),
    // It asks about those that the table does not show.
    button("Delete …", () => deleteRuns(store, ids, new Set(matching()), done), matching() === null),
  ];
}

/** Update the checkbox of several runs; indeterminate if only some are selected. */
export function tick(box, ids, chosen) {
  const on = ids.filter((id) => chosen.has(id)).length;
  box.checked = on > 0 && on === ids.length;
  box.indeterminate = on > 0 && on < ids.length;
}

/** More runs than an address can name are selected already: the charts show the current selection. */
function chartAddress(ids) {
  if (ids.length > MAX_NAMED) return address("charts", new URLSearchParams());
  return address("charts", new URLSearchParams(ids.map((id) => ["run", id])));
}
