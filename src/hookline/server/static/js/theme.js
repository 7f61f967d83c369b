// Light and dark theme, and the colours of lines. A key keeps the colour it got first.

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

const COLOURS = [
  "#3e63dd",
  "#e5692c",
  "#2f9e6e",
  "#c2418f",
  "#8e4ec6",
  "#0e8fb3",
  "#b8860b",
  "#d6444a",
  "#5d7a1f",
  "#7c7f88",
];
const given = { run: new Map(), group: new Map(), hook: new Map() };

/** @param {string} key @param {"run" | "group" | "hook"} kind each kind has its own sequence @returns {string} */
export function colourOf(key, kind = "run") {
  const own = given[kind];
  if (!own.has(key)) own.set(key, own.size);
  return COLOURS[own.get(key) % COLOURS.length];
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
