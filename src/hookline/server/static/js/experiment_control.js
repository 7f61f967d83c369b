// Control of an experiment that is being run: skip or stop an arm, add repeats. Nothing is shown for one that is over.

import { LatestRequest } from "./api.js";
import { commandTable } from "./command_table.js";
import { confirm } from "./confirm.js";
import { fill, h } from "./dom.js";
import { permissions, post } from "./post.js";

const POLL_MS = 2000;

export class ExperimentControl {
  #experiment = "";
  #timer = 0;
  #latest = new LatestRequest();
  #answer = null;
  #sent = [];
  #may = { edits: true, needs_token: false, reason: "" };

  constructor() {
    this.problem = h("p", { class: "bad", role: "alert" });
    this.buttons = h("div", {});
    this.history = h("div", { class: "control-wide" });
    this.element = h("section", { class: "control", hidden: true }, h("h2", {}, "Control"), this.problem, this.buttons, this.history);
    permissions().then(
      (may) => (this.#may = may),
      () => {},
    );
  }

  destroy() {
    clearTimeout(this.#timer);
    this.#latest.cancel();
    this.#experiment = "";
  }

  /** @param {string} experiment its directory */
  show(experiment) {
    if (experiment === this.#experiment) return;
    this.#experiment = experiment;
    this.element.hidden = true;
    this.#sent = [];
    this.#poll();
  }

  async #poll() {
    clearTimeout(this.#timer);
    const experiment = this.#experiment;
    if (!experiment) return;
    try {
      const answer = await this.#latest.get("run_commands", { id: experiment });
      if (!answer || experiment !== this.#experiment) return;
      const known = new Set(answer.commands.map((each) => each.id));
      this.#sent = this.#sent.filter((each) => !known.has(each.id));
      const isNew = JSON.stringify(answer) !== JSON.stringify(this.#answer);
      this.#answer = answer;
      if (isNew) this.#draw();
      if (!answer.listens) return; // it is over; opening the view again looks again
    } catch {
      return; // it was not recorded here, or cannot be controlled
    }
    this.#timer = setTimeout(() => this.#poll(), POLL_MS);
  }

  async #send(name, parameters) {
    fill(this.problem);
    try {
      const sent = await post("control/send", { run: this.#experiment, name, arguments: parameters }, "control");
      if (sent) this.#sent.unshift(sent);
    } catch (error) {
      fill(this.problem, error.message);
    }
    this.#draw();
    this.#poll();
  }

  #draw() {
    const { listens, commands } = this.#answer;
    const all = [...this.#sent, ...commands];
    this.element.hidden = !listens && !all.length;
    const can = listens && this.#may.edits;
    if (!this.buttons.contains(document.activeElement) || !can) fill(this.buttons, can ? this.#forms() : "");
    fill(this.history, all.length > 0 && commandTable(all, ""));
  }

  #forms() {
    const { arms = [], repeats = 1 } = this.#answer.offer;
    const arm = h("select", { "aria-label": "Arm" }, arms.map((name) => h("option", { value: name }, name)));
    const ask = (name, title, text) => () => {
      const reason = h("input", { type: "text", maxlength: 500, "aria-label": "Reason", placeholder: "Reason" });
      const act = () => this.#send(name, { arm: arm.value, ...(reason.value.trim() ? { reason: reason.value.trim() } : {}) });
      confirm(`${title} ${arm.value}?`, text, title, act, [reason]);
    };
    const skip = ask("skip", "Skip", "Its waiting runs are not started. Running ones continue.");
    const stop = ask("stop_arm", "Stop", "Its running runs stop after the step in progress, and its waiting runs are not started.");
    const count = h("input", { type: "number", min: repeats, max: 10000, step: 1, required: true, value: repeats + 1, "aria-label": "Repeats of each arm" });
    const submit = (event) => {
      event.preventDefault();
      count.blur();
      this.#send("repeats", { count: Number(count.value) });
    };
    return [
      h("div", { class: "control-buttons" }, h("label", { class: "field" }, h("span", {}, "arm"), arm), h("button", { type: "button", onclick: skip }, "Skip …"), h("button", { type: "button", class: "danger", onclick: stop }, "Stop …")),
      h("form", { class: "tunable", onsubmit: submit }, h("span", { class: "name" }, "repeats of each arm"), count, h("button", { type: "submit" }, "Set")),
    ];
  }
}
