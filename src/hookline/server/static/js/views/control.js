// Control: what a live run accepts (parameters, subscribers, commands of its callbacks), buttons that send commands, and
// what became of them. A command is shown as sent until the run says that it received or applied it.

import { addCallback } from "../add_callback.js";
import { LatestRequest } from "../api.js";
import { confirm, plain } from "../confirm.js";
import { empty, fill, focusedKey, h } from "../dom.js";
import { commandTable } from "../command_table.js";
import { milliseconds, whole } from "../format.js";
import { permissions, post } from "../post.js";
import { runAddress } from "../run_parts.js";

const POLL_MS = 1000;
/** The columns of numbers. */
const NUMBERS = new Set(["calls", "time", "errors"]);
const MOST_CALLS_SHOWN = 1e12;

export class ControlView {
  #run;
  #timer = 0;
  #latest = new LatestRequest();
  #answer = null;
  /** Commands of this page that the server has not listed yet. */
  #sent = [];
  #message = "";
  /** Text typed and not sent yet, by the keys of the fields, because every answer redraws them. */
  #edited = new Map();
  #may = { edits: true, needs_token: false, reason: "" };

  constructor(app) {
    this.#run = app.selection.ids[0] ?? "";
    this.status = h("p", { class: "control-status", role: "status" });
    this.alert = h("p", { class: "bad", role: "alert" });
    this.buttons = h("div", { class: "control-buttons" });
    this.parameters = h("div");
    this.subscribers = h("div", { class: "control-wide" });
    this.history = h("div", { class: "control-wide" });
    this.offered = h("div", {}, h("h3", {}, "Parameters"), this.parameters, h("h3", {}, "Subscribers"), this.subscribers);
    this.element = h(
      "section",
      { class: "page control" },
      h("h2", {}, "Control of ", h("a", { href: runAddress("run", this.#run), title: this.#run }, app.store.nameOf(this.#run))),
      this.status,
      this.alert,
      this.buttons,
      this.offered,
      h("h3", {}, "Commands"),
      this.history,
    );
    if (!this.#run) {
      fill(this.element, h("h2", {}, "Control"), empty("No run is selected", "Select a live run in the table of runs."));
      return;
    }
    fill(this.status, "Loading …");
    permissions().then(
      (may) => {
        this.#may = may;
        this.#show();
      },
      () => {},
    );
    this.#poll();
  }

  destroy() {
    clearTimeout(this.#timer);
    this.#latest.cancel?.();
    this.#run = "";
  }

  async #poll() {
    clearTimeout(this.#timer);
    if (!this.#run) return;
    try {
      const answer = await this.#latest.get("run_commands", { id: this.#run });
      if (!answer || !this.#run) return;
      this.#answer = answer;
      const known = new Set(answer.commands.map((each) => each.id));
      this.#sent = this.#sent.filter((each) => !known.has(each.id));
      this.#show();
    } catch (error) {
      if (!this.#run) return;
      fill(this.status, `The server cannot be asked: ${error.message}`);
    }
    this.#timer = setTimeout(() => this.#poll(), POLL_MS);
  }

  /**
   * @param {string} name
   * @param {Record<string, unknown>} [parameters]
   */
  async #send(name, parameters = {}) {
    this.#message = "";
    try {
      const sent = await post("control/send", { run: this.#run, name, arguments: parameters }, "control");
      if (sent) this.#sent.unshift(sent);
    } catch (error) {
      this.#message = error.message;
    }
    this.#show();
    this.#poll();
  }

  #show() {
    const answer = this.#answer;
    if (!answer) return;
    const can = answer.listens && this.#may.edits;
    const { offer } = answer;
    fill(this.status, this.#sentence(answer));
    this.offered.hidden = !answer.listens && !offer.subscribers; // it is over, or offers nothing
    fill(this.alert, this.#message);
    fill(this.buttons, can ? this.#actions(offer) : []);
    // A field that is being edited is left alone; the values around it are updated with the next answer.
    if (!this.parameters.contains(document.activeElement)) fill(this.parameters, this.#tunables(offer, can));
    const focused = focusedKey(this.subscribers);
    const isTyping = this.subscribers.querySelector("input:focus");
    if (!isTyping) fill(this.subscribers, this.#hooks(offer, can));
    if (focused && !isTyping) /** @type {any} */ (this.subscribers.querySelector(`[data-key="${CSS.escape(focused)}"]`))?.focus();
    fill(this.history, commandTable([...this.#sent, ...answer.commands], "Nothing was sent to this run yet"));
  }

  #sentence(answer) {
    if (!this.#may.edits) return `Nothing can be sent from here. ${this.#may.reason}`;
    if (answer.reason) return answer.reason;
    const paused = answer.offer.paused ? "It is paused. " : "";
    return `${paused}The run listens. Commands are applied at the end of the step in progress.`;
  }

  #actions(offer) {
    const cannot = offer.cannot ?? {};
    const button = (label, name, parameters, more = {}) =>
      h(
        "button",
        {
          type: "button",
          disabled: name in cannot,
          title: cannot[name] ?? "",
          data: { command: name },
          onclick: () => this.#send(name, parameters),
          ...more,
        },
        label,
      );
    return [
      button("Checkpoint", "checkpoint"),
      button("Validate", "validate"),
      offer.paused ? button("Continue", "continue") : button("Pause", "pause"),
      button("Stop …", "stop", {}, { class: "danger", onclick: () => this.#confirmStop() }),
      Object.entries(offer.commands ?? {}).map(([name, each]) =>
        button(name, name, {}, { title: each.description, onclick: () => this.#ownCommand(name, each) }),
      ),
    ];
  }

  #confirmStop() {
    const reason = h("input", { type: "text", maxlength: 500, "aria-label": "Reason", placeholder: "Reason" });
    const stop = () => this.#send("stop", reason.value.trim() ? { reason: reason.value.trim() } : {});
    confirm("Stop the training?", "It stops after the step in progress. This cannot be undone from here.", "Stop", stop, [reason]);
  }

  #ownCommand(name, described) {
    const fields = Object.entries(described.arguments).map(([key, value]) => [
      key,
      h("input", { type: "text", value: value ?? "", "aria-label": key, placeholder: key }),
    ]);
    const send = () => {
      const given = fields.filter(([, field]) => field.value !== "").map(([key, field]) => [key, plain(field.value)]);
      this.#send(name, Object.fromEntries(given));
    };
    const shown = fields.map(([key, field]) => h("label", { class: "field" }, h("span", {}, key), field));
    confirm(name, described.description, "Send", send, shown);
  }

  #tunables(offer, can) {
    const all = Object.entries(offer.tunables ?? {});
    if (!all.length) return empty("The run offers no parameters", "A program offers one with run.tunable(name, value).");
    return all.map(([name, each]) => this.#tunable(name, each, can));
  }

  #tunable(name, each, can) {
    const bounds = ["min", "max"].filter((key) => key in each).map((key) => `${key} ${each[key]}`);
    const isChoice = each.choices || each.type === "bool";
    const remembered = this.#edited.get(name) ?? (isChoice ? JSON.stringify(each.value) : each.value);
    const changed = (event) => this.#edited.set(name, event.target.value);
    const common = { "aria-label": name, disabled: !can, data: { key: name }, oninput: changed };
    let field;
    if (isChoice) {
      const choices = each.choices ?? [true, false];
      field = h("select", common, choices.map((value) => JSON.stringify(value)).map((value, at) => h("option", { value, selected: value === remembered }, String(choices[at]))));
    } else if (each.type === "str") field = h("input", { type: "text", value: remembered, ...common });
    else field = h("input", { type: "number", step: "any", min: each.min, max: each.max, required: true, value: remembered, ...common });
    const submit = (event) => {
      event.preventDefault();
      const value = field.tagName === "SELECT" ? JSON.parse(field.value) : each.type === "str" ? field.value : Number(field.value);
      this.#edited.delete(name);
      field.blur();
      this.#send("set", { name, value });
    };
    return h(
      "form",
      { class: "tunable", onsubmit: submit, data: { tunable: name } },
      h("span", { class: "name" }, name),
      h("span", { class: "value", data: { value: name } }, `now ${each.value}`),
      field,
      h("button", { type: "submit", disabled: !can, "aria-label": `Set ${name}` }, "Set"),
      h("span", { class: "count" }, bounds.join(", "), each.scheduled ? " scales the schedule" : ""),
    );
  }

  #hooks(offer, can) {
    const all = offer.subscribers ?? [];
    const refusal = offer.cannot?.["hooks.add"] ?? "";
    const add = h("button", { type: "button", disabled: !can || Boolean(refusal), title: refusal, data: { key: "add" }, onclick: () => addCallback((given) => this.#send("hooks.add", given)) }, "Add …");
    if (!all.length) return [empty("The run has no subscribers"), add];
    const names = ["order", "subscriber", "runs", "calls", "time", "errors", "on", "every n steps", ""];
    const table = h(
      "table",
      { class: "subscribers" },
      h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", class: NUMBERS.has(name) ? "number" : "", "aria-label": name || "remove" }, name)))),
      h("tbody", {}, all.map((each, place) => this.#hook(each, place, can))),
    );
    return [table, add];
  }

  #hook(each, place, can) {
    const { name } = each;
    const toggle = () => this.#send(each.enabled ? "hooks.disable" : "hooks.enable", { name });
    const key = `every ${name}`;
    const typed = () => this.#edited.set(key, every.value);
    const every = h("input", { type: "number", min: 1, step: 1, required: true, disabled: !can, value: this.#edited.get(key) ?? "", "aria-label": `Run ${name} every N steps`, data: { key }, oninput: typed });
    const later = `start ${name}`;
    const start = h("input", { type: "number", min: 0, step: 1, disabled: !can, value: this.#edited.get(later) ?? "", placeholder: "after", title: "After this many steps", "aria-label": `Run ${name} only after this many steps`, data: { key: later }, oninput: () => this.#edited.set(later, start.value) });
    const submit = (event) => {
      event.preventDefault();
      [key, later].forEach((field) => this.#edited.delete(field));
      [every, start].forEach((field) => field.blur());
      this.#send("hooks.schedule", { name, every: Number(every.value), ...(start.value ? { start: Number(start.value) } : {}) });
    };
    const remove = () => confirm(`Remove ${name}?`, "The run continues without it. What it has counted is lost.", "Remove", () => this.#send("hooks.remove", { name }));
    return h(
      "tr",
      { class: each.enabled ? "" : "off" },
      h("td", {}, place + 1),
      h("th", { scope: "row" }, name, h("span", { class: "count" }, ` ${each.kind}`)),
      h("td", {}, inWords(each.schedule)),
      h("td", { class: "number" }, whole(Math.min(each.calls, MOST_CALLS_SHOWN))),
      h("td", { class: "number" }, milliseconds(each.seconds * 1000)),
      h("td", { class: "number" }, whole(each.errors)),
      h("td", {}, h("button", { type: "button", role: "switch", "aria-checked": String(each.enabled), "aria-label": name, disabled: !can, onclick: toggle, data: { key: `on ${name}` } }, each.enabled ? "on" : "off")),
      h("td", {}, h("form", { class: "every", onsubmit: submit }, every, start, h("button", { type: "submit", disabled: !can, "aria-label": `Schedule ${name}` }, "Set"))),
      h("td", {}, h("button", { type: "button", class: "small", disabled: !can, "aria-label": `Remove ${name}`, data: { key: `remove ${name}` }, onclick: remove }, "Remove …")),
    );
  }
}

/** A cadence as people say it; one that is no plain number of steps is shown as the program wrote it. @param {string} schedule */
function inWords(schedule) {
  const [, n, , start] = /^Every\((\d+)(, start=(\d+))?\)$/.exec(schedule) ?? [];
  if (!n) return schedule || "always";
  const often = n === "1" ? "every step" : `every ${whole(Number(n))} steps`;
  return start ? `${often} after ${whole(Number(start))}` : often;
}
