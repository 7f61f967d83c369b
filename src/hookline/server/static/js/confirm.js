// A dialog that asks for confirmation before a request is sent, with fields for its arguments.

import { h } from "./dom.js";

/**
 * @param {string} title
 * @param {string} text
 * @param {string} label of the button
 * @param {() => void} act
 * @param {any[]} fields
 */
export function confirm(title, text, label, act, fields = []) {
  const closed = () => {
    dialog.remove();
    if (dialog.returnValue === "ok") act();
  };
  const buttons = h("p", { class: "buttons" }, h("button", { value: "", formnovalidate: true }, "Cancel"), h("button", { value: "ok", class: "primary" }, label));
  const dialog = h("dialog", { class: "edit", onclose: closed }, h("form", { method: "dialog" }, h("h2", {}, title), text && h("p", {}, text), fields, buttons));
  document.body.append(dialog);
  dialog.showModal();
}

/** The value that a text stands for: a number, a truth value, or the text itself. @param {string} text */
export function plain(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
