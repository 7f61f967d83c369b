// Changes: POST requests, with the header that other sites cannot send and, where one is needed, a token. Tokens are kept
// in memory for this visit only: one for each role, because one that may write need not be one that may control.

import { ApiError, NoAnswerError, request } from "./api.js";
import { h } from "./dom.js";

/** @typedef {{edits: boolean, needs_token: boolean, reason: string}} Permissions */

/** @type {Map<string, string>} */
const tokens = new Map();

/** What may be changed here. @returns {Promise<Permissions>} */
export function permissions() {
  return request("permissions");
}

/**
 * Change something; asks for a token if the server needs one.
 * @param {string} path below /api/
 * @param {unknown} body
 * @param {string} role that the token needs
 * @returns {Promise<any>} null if no token was given
 */
export async function post(path, body, role = "write") {
  const { needs_token: needsToken } = await permissions();
  let problem = "";
  for (;;) {
    const token = !needsToken ? "" : (tokens.get(role) ?? (await askToken(role, problem)));
    if (needsToken && !token) return null;
    const headers = { "Content-Type": "application/json", "X-Hookline-Action": "1" };
    if (token) headers.Authorization = `Bearer ${token}`;
    const response = await fetch(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => {
      throw new NoAnswerError();
    });
    const answer = await response.json();
    tokens.delete(role);
    if (response.ok) {
      if (token) tokens.set(role, token);
      return answer;
    }
    // Otherwise it may be the wrong one: the next attempt asks again.
    if (response.status !== 401) throw Object.assign(new ApiError(answer.error), { facts: answer });
    problem = answer.error;
  }
}

/** @param {string} role @param {string} problem @returns {Promise<string | null>} null if it was cancelled */
function askToken(role, problem) {
  const { promise, resolve } = Promise.withResolvers();
  const field = h("input", { type: "password", autocomplete: "off", required: true, "aria-label": `Token with the role ${role}` });
  const dialog = h(
    "dialog",
    { class: "edit", onclose: () => (dialog.remove(), resolve(dialog.returnValue === "ok" ? field.value.trim() : null)) },
    h(
      "form",
      { method: "dialog" },
      h("h2", {}, "Token"),
      h("p", {}, `Changes on this server need a token with the role ${role}. It is kept until the page is closed.`),
      field,
      h("p", { role: "alert", class: "bad" }, problem),
      h("p", { class: "buttons" }, h("button", { value: "", formnovalidate: true }, "Cancel"), h("button", { value: "ok", class: "primary" }, "Continue")),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  field.focus();
  return promise;
}
