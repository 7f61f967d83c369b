// Alerts: what rules raised over the runs, how far each was delivered, buttons to acknowledge and mute, and the rules.

import { AlertRules } from "../alert_rules.js";
import { LatestRequest } from "../api.js";
import { empty, failed, fill, focusedKey, h } from "../dom.js";
import { dateTime, number } from "../format.js";
import { permissions, post } from "../post.js";
import { runAddress } from "../run_parts.js";

const POLL_MS = 5000;
const MUTE_SECONDS = 2 * 3600;

export class AlertsView {
  #app;
  #timer = 0;
  #isOver = false;
  #latest = new LatestRequest();
  #answer = null;
  #may = { edits: true, needs_token: false, reason: "" };

  constructor(app) {
    this.#app = app;
    this.status = h("p", { class: "control-status", role: "status" }, "Loading …");
    this.problem = h("p", { class: "bad", role: "alert" });
    this.all = h("input", { type: "checkbox", onchange: () => this.#show() });
    this.alerts = h("div", { class: "control-wide" });
    this.acknowledge = h("button", { type: "button", class: "small", onclick: () => this.#acknowledgeAll() }, "Acknowledge all");
    this.mutes = h("div", { class: "control-wide" });
    this.rules = new AlertRules(app.store, (path, body) => this.#change(path, body));
    this.delivery = h("p", { class: "muted" });
    this.element = h(
      "section",
      { class: "page control" },
      h("h2", {}, "Alerts"),
      this.status,
      this.problem,
      h("p", { class: "control-buttons" }, h("label", { class: "toggle" }, this.all, h("span", {}, "show acknowledged alerts")), this.acknowledge),
      this.alerts,
      h("h3", {}, "Rules"),
      this.delivery,
      this.rules.element,
      h("h3", {}, "Muted"),
      this.mutes,
    );
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
    this.#isOver = true;
  }

  async #poll() {
    clearTimeout(this.#timer);
    if (this.#isOver) return;
    try {
      const answer = await this.#latest.get("alerts");
      if (!answer || this.#isOver) return;
      this.#answer = answer;
      this.#show();
    } catch (error) {
      if (!this.#isOver && !this.#answer) fill(this.alerts, failed(error, () => this.#poll()));
    }
    this.#timer = setTimeout(() => this.#poll(), POLL_MS);
  }

  /** @returns {Promise<boolean>} whether it was changed */
  async #change(path, body) {
    fill(this.problem, "");
    let isDone = false;
    try {
      isDone = Boolean(await post(`actions/${path}`, body));
    } catch (error) {
      fill(this.problem, error.message);
    }
    await this.#poll();
    dispatchEvent(new Event("alertschange"));
    return isDone;
  }

  #open() {
    return this.#answer.alerts.filter((each) => each.state !== "acknowledged");
  }

  #acknowledgeAll() {
    this.#change("acknowledge_alerts", { alerts: this.#open().map((each) => each.id) });
  }

  #show() {
    if (!this.#answer) return;
    const { alerts, mutes, total, rules, destinations } = this.#answer;
    const focused = focusedKey(this.element);
    const open = this.#open();
    this.acknowledge.disabled = !this.#may.edits;
    this.acknowledge.hidden = open.length < 2;
    fill(this.status, [`${open.length} of ${total} not acknowledged. `, this.#may.edits ? "" : this.#may.reason]);
    fill(this.alerts, this.#table(this.all.checked ? alerts : open));
    fill(this.mutes, this.#muted(mutes));
    this.rules.show(rules, this.#may.edits);
    const where = destinations.length
      ? `Alerts are delivered to ${destinations.join(", ")}.`
      : "Alerts are listed here only. A file given with --alerts says where to deliver them.";
    fill(this.delivery, where);
    if (focused) /** @type {any} */ (this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`))?.focus();
  }

  #button(key, label, name, act) {
    return h("button", { type: "button", "aria-label": name, disabled: !this.#may.edits, onclick: act, data: { key } }, label);
  }

  #table(shown) {
    if (!shown.length) return empty("No alerts");
    const names = ["time", "run", "rule", "step", "message", "value", "state", ""];
    const rows = shown.map((each) =>
      h(
        "tr",
        { data: { alert: each.id, state: each.state } },
        h("td", {}, dateTime(each.time)),
        h("td", {}, h("a", { href: runAddress("run", each.run), title: each.run }, this.#app.store.nameOf(each.run))),
        h("td", {}, each.rule),
        h("td", { class: "number" }, each.step ?? ""),
        h("td", {}, each.message, Object.entries(each.errors).map(([name, error]) => h("div", { class: "bad" }, `${name}: ${error}`))),
        h("td", { class: "number" }, typeof each.value === "number" ? number(each.value) : String(each.value ?? "")),
        h("td", {}, each.state, each.acknowledged_by ? ` by ${each.acknowledged_by}` : ""),
        h(
          "td",
          {},
          h(
            "div",
            { class: "control-buttons" },
            each.state !== "acknowledged" &&
              this.#button(`ack ${each.id}`, "Acknowledge", `Acknowledge ${each.rule} of ${each.run}`, () =>
                this.#change("acknowledge_alerts", { alerts: [each.id] }),
              ),
            this.#button(`mute ${each.id}`, "Mute for 2 h", `Mute ${each.rule} of ${each.run}`, () =>
              this.#change("mute_alerts", { rule: each.rule, run: each.run, seconds: MUTE_SECONDS }),
            ),
          ),
        ),
      ),
    );
    return h("table", { class: "alerts" }, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", "aria-label": name || "change" }, name)))), h("tbody", {}, rows));
  }

  #muted(mutes) {
    if (!mutes.length) return empty("Nothing is muted", "Muted alerts are listed, but not delivered.");
    return h(
      "ul",
      { class: "mutes" },
      mutes.map((each) => {
        const what = [each.rule && `rule ${each.rule}`, each.run && `run ${each.run}`].filter(Boolean).join(" in ");
        const until = each.until ? ` until ${dateTime(each.until)} ` : " ";
        const unmute = () => this.#change("mute_alerts", { rule: each.rule, run: each.run, off: true });
        return h("li", {}, what, until, this.#button(`unmute ${what}`, "Unmute", `Unmute ${what}`, unmute));
      }),
    );
  }
}
