// Asks the server. Every answer is JSON; a refusal becomes an error with the server's own words.

import { askForToken } from "./login.js";

export class Refused extends Error {}

/** How many runs one request may name, and how many characters their ids may take in its address. */
const MOST_RUNS = 500;
const MOST_CHARACTERS = 40_000;

/** As many of some runs, from the first on, as one request can be about. @param {string[]} ids @returns {string[]} */
export function firstRuns(ids) {
  let left = MOST_CHARACTERS;
  const end = ids.findIndex((id, place) => place >= MOST_RUNS || (left -= encodeURIComponent(id).length + 5) < 0);
  return end < 0 ? ids : ids.slice(0, end);
}

/**
 * @param {string} path below /api/
 * @param {Record<string, unknown>} [parameters] lists are given several times; what is empty is left out
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") query.append(name, String(each));
    }
  }
  const text = query.toString();
  const response = await fetch(`/api/${path}${text ? `?${text}` : ""}`, { signal });
  if (response.status === 401) askForToken();
  const answer = await response.json();
  if (!response.ok) throw new Refused(answer.error);
  return answer;
}

/** Asks one thing at a time: a newer question ends the one before, whose answer nobody wants any more. */
export class Question {
  #controller = null;

  /** @returns {Promise<any>} null where a newer question came */
  async ask(path, parameters) {
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    try {
      const answer = await ask(path, parameters, controller.signal);
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
