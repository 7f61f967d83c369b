// A dialog that adds a registered callback or hook to a live run, with its arguments.

import { request } from "./api.js";
import { confirm, plain } from "./confirm.js";
import { fill, h } from "./dom.js";

/**
 * @param {(parameters: Record<string, unknown>) => void} send sends the command
 */
export async function addCallback(send) {
  let known = [];
  try {
    known = (await request("addable_callbacks")).callbacks;
  } catch {
    // Without names to choose from, one is typed.
  }
  /** The fields of the arguments, by name. @type {Map<string, HTMLInputElement>} */
  let fields = new Map();
  const described = h("p", { class: "muted" });
  const parameters = h("div", { class: "arguments" });
  const use = h("input", { type: "text", required: true, list: "addable", "aria-label": "Registered name", placeholder: "registered name", oninput: () => show() });
  const every = h("input", { type: "number", min: 1, step: 1, "aria-label": "Every N steps", placeholder: "every step" });
  const show = () => {
    const found = known.find((each) => each.name === use.value.trim());
    const entries = Object.entries(found?.arguments ?? {});
    const field = (name, value) => h("input", { type: "text", "aria-label": name, placeholder: value === null ? "" : String(value) });
    fields = new Map(entries.map(([name, value]) => [name, field(name, value)]));
    fill(described, found?.description.replaceAll("``", "") ?? "");
    fill(parameters, [...fields].map(([name, input]) => line(name, input)));
  };
  const act = () => {
    const given = [...fields].filter(([, input]) => input.value !== "").map(([name, input]) => [name, plain(input.value)]);
    send({ use: use.value.trim(), with: Object.fromEntries(given), ...(every.value ? { every: Number(every.value) } : {}) });
  };
  const options = h("datalist", { id: "addable" }, known.map(({ name, description }) => h("option", { value: name }, description.replaceAll("``", ""))));
  confirm("Add a callback", "", "Add", act, [options, line("name", use), described, parameters, line("every n steps", every)]);
  use.focus();
}

function line(name, input) {
  return h("label", { class: "line wide" }, h("span", {}, name), input);
}
