// The part of x that charts show: moved and scaled by keys and buttons, within what there is to see.

/** A narrower part has nothing between its ends that a number could tell apart. */
const LEAST = 1e-9;

/**
 * @param {[number, number] | null} zoom what is in sight; null for everything
 * @param {[number, number]} extent everything
 * @param {"in" | "out" | "left" | "right"} how
 * @param {boolean} isLog whether the axis is
 * @returns {[number, number] | null}
 */
export function moved(zoom, extent, how, isLog = false) {
  const [to, from] = isLog ? [Math.log10, (value) => 10 ** value] : [(value) => value, (value) => value];
  const [first, last] = extent.map(to);
  const [low, high] = (zoom ?? extent).map(to);
  if (!Number.isFinite(first) || !(last > first)) return zoom;
  const width = (high - low) * { in: 0.5, out: 2, left: 1, right: 1 }[how];
  if (width >= last - first) return null;
  if (width < (last - first) * LEAST) return zoom;
  const shift = { in: 0, out: 0, left: -0.25, right: 0.25 }[how] * width;
  const begin = Math.max(first, Math.min(last - width, (low + high - width) / 2 + shift));
  return [begin, begin + width].map(from);
}
