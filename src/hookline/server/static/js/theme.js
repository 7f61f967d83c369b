// Light and dark theme, and the colours of lines: the same for a run in every view.

import { recall, remember } from "./page_state.js";

const listeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

export function listenToTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** @param {HTMLButtonElement} button */
export function bindThemeButton(button) {
  const show = () => {
    button.textContent = isDark() ? "☀" : "☾";
    button.title = `${isDark() ? "Light" : "Dark"} theme (t)`;
    button.setAttribute("aria-label", button.title);
    for (const listener of listeners) listener();
  };
  button.addEventListener("click", () => {
    const chosen = isDark() ? "light" : "dark";
    const isSystems = (chosen === "dark") === system.matches;
    if (isSystems) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    remember("theme", isSystems ? null : chosen);
    show();
  });
  system.addEventListener("change", show);
  if (recall("theme", null) === null) delete document.documentElement.dataset.theme;
  show();
}

/** The value of a CSS colour variable, for a canvas. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/**
 * Distinguishable with red-green and blue-yellow colour blindness, and with a contrast of at least 3:1 to both themes'
 * surfaces: chosen by the smallest distance of any two in OKLab, as seen with each.
 */
export const COLOURS = ["#005afa", "#c88200", "#c800c8", "#147800", "#e6003c", "#14a0a0", "#aa78fa", "#825a82"];
/** This many consecutive runs have different colours, whatever their ids. */
const IN_A_ROW = 6;
const runColours = new Map();
/** Places by kind and key, as they were given. @type {Map<string, Map<string, number>>} */
const given = new Map();

/**
 * Give runs their colours: by their ids, so that a run has one colour in every view and on every machine. Where runs of
 * a project that started one after another would share a colour, the later one gets the next that is free.
 * @param {{id: string, project: string, started: number | null}[]} runs
 */
export function assignRunColours(runs) {
  runColours.clear();
  const ordered = runs.toSorted((a, b) => (a.started ?? 0) - (b.started ?? 0) || (a.id < b.id ? -1 : 1));
  const latest = new Map();
  for (const { id, project } of ordered) {
    const before = latest.get(project) ?? [];
    const place = freePlace(id, new Set(before));
    runColours.set(id, place);
    latest.set(project, [...before, place].slice(1 - IN_A_ROW));
  }
}

/** The place of a key's colour: by its hash, or the next one that is not used. */
function freePlace(key, used) {
  const first = hash(key) % COLOURS.length;
  for (let away = 0; away < COLOURS.length; away += 1) {
    const place = (first + away) % COLOURS.length;
    if (!used.has(place)) return place;
  }
  return first;
}

/** FNV-1a, with a last mixing: keys often differ only in their last character. @param {string} text */
function hash(text) {
  let value = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) value = Math.imul(value ^ text.charCodeAt(at), 0x01000193);
  value = Math.imul(value ^ (value >>> 16), 0x45d9f3b);
  return (value ^ (value >>> 16)) >>> 0;
}

/** The colour of a run, or of a group, hook or label, which have separate sequences.
 * @param {string} key @param {string} kind run, hook, label, or a way to group @returns {string}
 */
export function colourOf(key, kind = "run") {
  if (kind === "run") return COLOURS[runColours.get(key) ?? hash(key) % COLOURS.length];
  if (!given.has(kind)) given.set(kind, new Map());
  const own = given.get(kind);
  if (!own.has(key)) own.set(key, freePlace(key, new Set(own.values())));
  return COLOURS[own.get(key)];
}

/** @param {string} line a colour @param {number} alpha */
export function faint(line, alpha) {
  return (
    line +
    Math.round(alpha * 255)
      .toString(16)
      .padStart(2, "0")
  );
}
