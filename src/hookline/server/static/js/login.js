// Asks for the read token where the server wants one, and shows the page again once it has it. The token itself is kept
// nowhere: the server gives the browser a cookie for it, which no script can read.

import { h } from "./dom.js";

const ASKED = "/api/openapi.json";

let shown = false;

/** Whether reading is allowed; where it is not, the token is asked for. */
export async function mayRead() {
  try {
    const { status } = await fetch(ASKED, { method: "HEAD" });
    if (status === 403) await sayRefused();
    if (status !== 401) return status !== 403;
  } catch {
    return true; // nobody answers: that is said elsewhere
  }
  askForToken();
  return false;
}

/** Show why reading is not allowed, where no token would help. */
async function sayRefused() {
  if (shown) return;
  shown = true;
  const { error } = await (await fetch(ASKED)).json();
  document.body.append(h("dialog", { class: "login", open: true }, h("p", { role: "alert" }, error)));
}

/** Show the field for the token; asked for again, it stays. */
export function askForToken() {
  if (shown) return;
  shown = true;
  const field = h("input", {
    type: "password",
    name: "token",
    autocomplete: "current-password",
    required: true,
    "aria-label": "Read token",
    style: { marginRight: "8px" },
  });
  const said = h("p", { role: "alert" });
  const form = h(
    "form",
    { onsubmit: (event) => submit(event, field, said) },
    h("h2", {}, "Read token"),
    h("p", {}, "This server shows its runs to those who have its read token."),
    field,
    h("button", {}, "Show the runs"),
    said,
  );
  const dialog = h("dialog", { class: "login", oncancel: (event) => event.preventDefault() }, form);
  document.body.append(dialog);
  dialog.showModal();
  field.focus();
}

async function submit(event, field, said) {
  event.preventDefault();
  said.textContent = "";
  try {
    const response = await fetch("/api/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token: field.value.trim() }),
    });
    if (response.ok) location.reload();
    else said.textContent = (await response.json()).error;
  } catch {
    said.textContent = "The server does not answer.";
  }
}
