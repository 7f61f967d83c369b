// Requests to the server, and the login. Every response is JSON; an error has the server's message. The token is not
// stored: the server sets a cookie for it, which scripts cannot read.

import { h } from "./dom.js";

/** The server refused a request; other errors mean that there was no answer. */
export class ApiError extends Error {}

/** There was no answer. The page keeps its content and shows at the top that it is outdated. */
export class NoAnswerError extends Error {
  constructor() {
    super(NO_ANSWER);
  }
}

const NO_ANSWER = "The server does not respond.";

/** Limits of one request: the number of runs, and the length of their ids in the URL. */
const MAX_RUNS = 500;
const MAX_CHARACTERS = 40_000;

/** The first runs that fit into one request. @param {string[]} ids @returns {string[]} */
export function firstRuns(ids) {
  let left = MAX_CHARACTERS;
  const end = ids.findIndex((id, place) => place >= MAX_RUNS || (left -= encodeURIComponent(id).length + 5) < 0);
  return end < 0 ? ids : ids.slice(0, end);
}

/**
 * @param {string} path below /api/
 * @param {Record<string, unknown>} [parameters] lists are repeated; empty values are left out
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function request(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") query.append(name, String(each));
    }
  }
  const text = query.toString();
  return shared(`/api/${path}${text ? `?${text}` : ""}`, signal);
}

/** Answers by URL, the last used last: one that has not changed on the server is not sent again. */
const kept = new Map();
const MAX_KEPT = 40;
/** Requests under way by URL, with the number of those who wait: equal ones are made once. */
const pending = new Map();

/** @param {string} url @param {AbortSignal} [signal] */
async function shared(url, signal) {
  let flight = pending.get(url);
  if (!flight) {
    const controller = new AbortController();
    flight = { controller, waiting: 0, answer: load(url, controller.signal) };
    pending.set(url, flight);
    // For equal requests of the same moment only: a later one has to see what was recorded since.
    queueMicrotask(() => pending.get(url) === flight && pending.delete(url));
  }
  flight.waiting += 1;
  const leave = () => {
    flight.waiting -= 1;
    if (!flight.waiting) flight.controller.abort();
  };
  signal?.addEventListener("abort", leave, { once: true });
  try {
    return await flight.answer;
  } finally {
    signal?.removeEventListener("abort", leave);
  }
}

async function load(url, signal) {
  const known = kept.get(url);
  const headers = known ? { "If-None-Match": known.tag } : {};
  const response = await fetch(url, { signal, headers, cache: "no-store" }).catch((error) => {
    throw signal.aborted ? error : new NoAnswerError();
  });
  if (response.status === 304) {
    keep(url, known);
    return known.answer;
  }
  if (response.status === 401) showLogin();
  const answer = await response.json().catch((error) => {
    throw signal.aborted ? error : new Error(`The answer of the server cannot be read (status ${response.status}).`);
  });
  if (!response.ok) throw Object.assign(new ApiError(answer.error), { facts: answer });
  const tag = response.headers.get("ETag");
  if (tag) keep(url, { tag, answer });
  return answer;
}

function keep(url, answer) {
  kept.delete(url);
  kept.set(url, answer);
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
}

/** One request at a time: a newer one aborts the one before. */
export class LatestRequest {
  #controller = null;

  /** @returns {Promise<any>} null if a newer request was made */
  async get(path, parameters) {
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    try {
      const answer = await request(path, parameters, controller.signal);
      return controller.signal.aborted ? null : answer;
    } catch (error) {
      if (controller.signal.aborted) return null;
      throw error;
    }
  }

  cancel() {
    this.#controller?.abort();
  }
}

const PROBE = "/api/openapi.json";

let shown = false;
/** Whether the login is shown; it stays until the page is loaded again. */
export let isLoggedOut = false;

/** Whether reading is allowed; shows the login if a token is needed. */
export async function canRead() {
  try {
    const { status } = await fetch(PROBE, { method: "HEAD" });
    if (status === 403) await showRefusal();
    if (status !== 401) return status !== 403;
  } catch {
    return true; // the server is down, which is shown elsewhere
  }
  showLogin();
  return false;
}

/** Show why reading is not allowed, if a token would not help. */
async function showRefusal() {
  if (shown) return;
  shown = true;
  const { error } = await (await fetch(PROBE)).json();
  document.body.append(h("dialog", { class: "login", open: true }, h("p", { role: "alert" }, error)));
}

/** Show the login, once. */
export function showLogin() {
  if (shown) return;
  shown = isLoggedOut = true;
  const field = h("input", {
    type: "password",
    name: "token",
    autocomplete: "current-password",
    required: true,
    "aria-label": "Read token",
    style: { marginRight: "8px" },
  });
  const message = h("p", { role: "alert" });
  const form = h(
    "form",
    { onsubmit: (event) => submit(event, field, message) },
    h("h2", {}, "Read token"),
    h("p", {}, "Enter a token that may read."),
    field,
    h("button", {}, "Log in"),
    message,
  );
  const dialog = h("dialog", { class: "login", oncancel: (event) => event.preventDefault() }, form);
  document.body.append(dialog);
  dialog.showModal();
  field.focus();
}

async function submit(event, field, message) {
  event.preventDefault();
  message.textContent = "";
  try {
    const response = await fetch("/api/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token: field.value.trim() }),
    });
    if (response.ok) location.reload();
    else message.textContent = (await response.json()).error;
  } catch {
    message.textContent = NO_ANSWER;
  }
}
