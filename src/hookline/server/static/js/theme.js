// Light and dark: as the system has it, until somebody chooses.

import { recall, remember } from "./settings.js";

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

/** A colour of the style sheet as a canvas wants it. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
