// Colours of lines. Whoever came first keeps its colour, also when others come and go.

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

/** @param {string} key @param {"run" | "group" | "hook"} kind each has the colours from the first on @returns {string} */
export function colourOf(key, kind = "run") {
  const own = given[kind];
  if (!own.has(key)) own.set(key, own.size);
  return COLOURS[own.get(key) % COLOURS.length];
}

/** @param {string} colour @param {number} alpha */
export function faint(colour, alpha) {
  return (
    colour +
    Math.round(alpha * 255)
      .toString(16)
      .padStart(2, "0")
  );
}
