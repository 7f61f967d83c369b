// Dialogs that edit and delete runs.

import { request } from "./api.js";
import { fill, h } from "./dom.js";
import { plural } from "./format.js";
import { post } from "./post.js";
import { isOver } from "./run_store.js";

const MAX_LISTED = 8;

/**
 * Archive runs, or show them again.
 * @param {string[]} ids @param {boolean} archived
 */
export function archive(ids, archived) {
  return post("actions/edit_runs", { runs: ids, archived });
}

/**
 * Edit the name, the tags and the notes of one run, or the tags and the notes of several.
 * @param {import("./run_store.js").RunStore} store @param {string[]} ids @param {() => void} done
 */
export async function editRuns(store, ids, done) {
  const runs = ids.map((id) => store.byId.get(id)).filter(Boolean);
  const one = runs.length === 1 ? runs[0] : null;
  const known = [...new Set(store.all.flatMap((run) => run.tags))].sort();
  const removed = new Set();
  const tags = [...new Set(runs.flatMap((run) => run.tags))];
  const name = one && h("input", { value: one.name, maxlength: 200 });
  const added = h("input", { list: "known-tags", placeholder: "Add tags, separated by commas", "aria-label": "Add tags" });
  const notes = h("textarea", { rows: 5, maxlength: 20000, "aria-label": "Notes", placeholder: one ? "" : "Leave empty to keep the notes" });
  let before = "";
  if (one) {
    const { notes: recorded } = await request("run", { id: one.id });
    before = notes.value = recorded;
  }
  const chips = tags.map((tag) => {
    const chip = h(
      "button",
      {
        type: "button",
        class: "chip tag",
        "aria-pressed": "true",
        title: `Remove ${tag}`,
        onclick: () => {
          if (!removed.delete(tag)) removed.add(tag);
          chip.setAttribute("aria-pressed", String(!removed.has(tag)));
        },
      },
      tag,
    );
    return chip;
  });
  const content = [
    h("h2", {}, one ? `Edit ${one.name}` : `Edit ${plural(runs.length, "run")}`),
    one && h("label", { class: "line" }, h("span", {}, "Name"), name),
    h("div", { class: "line" }, h("span", {}, "Tags"), h("div", {}, h("div", { class: "chips", role: "group", "aria-label": "Tags to keep" }, chips), added)),
    h("datalist", { id: "known-tags" }, known.map((tag) => h("option", { value: tag }))),
    h("label", { class: "line" }, h("span", {}, "Notes"), notes),
  ];
  const change = () => {
    const changed = { runs: ids };
    if (one && name.value.trim() !== one.name) changed.name = name.value.trim();
    if (notes.value !== before) changed.notes = notes.value;
    const more = added.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    if (more.length) changed.add_tags = more;
    if (removed.size) changed.remove_tags = [...removed];
    return Object.keys(changed).length > 1 ? post("actions/edit_runs", changed) : Promise.resolve({});
  };
  open(content, "Save", change, done);
}

/**
 * Delete runs, after asking.
 * @param {import("./run_store.js").RunStore} store @param {string[]} ids @param {Set<string>} found the runs that the
 *   table shows
 * @param {() => void} done
 */
export function deleteRuns(store, ids, found, done) {
  const runs = ids.map((id) => store.byId.get(id)).filter(Boolean);
  const over = runs.filter(isOver);
  const hidden = over.filter((run) => !found.has(run.id)).length;
  const running = runs.length - over.length;
  const names = over.slice(0, MAX_LISTED).map((run) => h("li", {}, run.id));
  const content = [
    h("h2", {}, over.length ? `Delete ${plural(over.length, "run")}?` : "No run can be deleted"),
    hidden > 0 && h("p", { class: "bad" }, `Not shown in the table: ${hidden} of them.`),
    h("ul", {}, names, over.length > MAX_LISTED && h("li", {}, `and ${over.length - MAX_LISTED} more`)),
    running > 0 && h("p", {}, `Still running, and therefore kept: ${running}.`),
    over.length > 0 && h("p", {}, "Their directories are deleted for good, and the files that no other run uses."),
  ];
  const remove = () => post("actions/delete_runs", { runs: over.map((run) => run.id) });
  open(content, over.length ? `Delete ${plural(over.length, "run")}` : "", remove, done);
}

/** A dialog that stays until its action has succeeded. */
function open(content, label, act, done) {
  const problem = h("p", { role: "alert", class: "bad" });
  const submit = label && h("button", { class: label.startsWith("Delete") ? "danger" : "primary" }, label);
  const dialog = h(
    "dialog",
    { class: "edit", onclose: () => dialog.remove() },
    h(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          submit.disabled = true;
          fill(problem);
          try {
            if ((await act()) !== null) {
              dialog.close();
              done();
            }
          } catch (error) {
            fill(problem, error.message);
          }
          submit.disabled = false;
        },
      },
      content,
      problem,
      h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}

/** The problems of a run's record in full. @param {import("./run_store.js").Run} run */
export function showProblems(run) {
  const dialog = h(
    "dialog",
    { class: "edit", onclose: () => dialog.remove() },
    h("h2", {}, `Problems in the record of ${run.name}`),
    run.problems.map((problem) => h("p", { class: "message", data: { status: "stalled" } }, problem)),
    h("form", { method: "dialog", class: "buttons" }, h("button", {}, "Close")),
  );
  document.body.append(dialog);
  dialog.showModal();
}
