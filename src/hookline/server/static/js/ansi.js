// Text with ANSI colours as elements. Recorded text only becomes text nodes; a sequence only becomes class names of ours.

import { h } from "./dom.js";

const SEQUENCE = /\x1b\[([0-9;:]*)m/g; // eslint-disable-line no-control-regex
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/**
 * A line of a terminal.
 * @param {string} text
 * @returns {(string | HTMLElement)[]}
 */
export function ansiText(text) {
  if (!text.includes("\x1b")) return [text];
  const parts = [];
  const state = { color: "", bold: false, dim: false, italic: false, underline: false };
  let position = 0;
  const add = (end) => {
    const shown = text.slice(position, end).replaceAll("\x1b", "␛");
    if (!shown) return;
    const styles = [state.color, ...["bold", "dim", "italic", "underline"].filter((name) => state[name])];
    const named = styles.filter(Boolean).map((name) => `ansi-${name}`).join(" ");
    parts.push(named ? h("span", { class: named }, shown) : shown);
  };
  for (const found of text.matchAll(SEQUENCE)) {
    add(found.index);
    position = found.index + found[0].length;
    apply(state, found[1].split(/[;:]/).map(Number));
  }
  add(text.length);
  return parts;
}

/** A line of a terminal without its colours. @param {string} text */
export function withoutAnsi(text) {
  return text.replace(SEQUENCE, "");
}

function apply(state, codes) {
  for (let place = 0; place < codes.length; place++) {
    const code = codes[place];
    if (code === 0) Object.assign(state, { color: "", bold: false, dim: false, italic: false, underline: false });
    else if (code === 1) state.bold = true;
    else if (code === 2) state.dim = true;
    else if (code === 3) state.italic = true;
    else if (code === 4) state.underline = true;
    else if (code === 22) state.bold = state.dim = false;
    else if (code === 23) state.italic = false;
    else if (code === 24) state.underline = false;
    else if (code === 39) state.color = "";
    else if (code >= 30 && code <= 37) state.color = NAMES[code - 30];
    else if (code >= 90 && code <= 97) state.color = NAMES[code - 90];
    else if (code === 38 || code === 48) {
      // A colour by number or by its parts: the first sixteen have names here, others are shown in the text's colour.
      const isNumbered = codes[place + 1] === 5;
      const number = isNumbered ? codes[place + 2] : NaN;
      if (code === 38) state.color = number < 16 ? NAMES[number % 8] : "";
      place += isNumbered ? 2 : 4;
    }
  }
}
