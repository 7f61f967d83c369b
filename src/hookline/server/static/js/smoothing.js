// Smoothing in which the weight of a point fades exponentially with its distance along x, to both sides alike: the line
// does not lag behind, and lines that were recorded, or thinned out, at other rates are smoothed alike.

/**
 * @param {number[]} x rising
 * @param {(number | null)[]} y
 * @param {number} strength from 0 (none) below 1
 * @param {number} [extent] of x, where the points are only a part of the line; that of the points by default
 * @returns {(number | null)[]}
 */
export function smoothed(x, y, strength, extent = x[x.length - 1] - x[0]) {
  const span = x.length < 3 ? 0 : extent * strength ** 3 * 0.08;
  if (!(span > 0)) return y;
  const places = y.flatMap((value, index) => (value === null ? [] : [index]));
  const before = faded(places, x, y, span);
  const after = faded(places.toReversed(), x, y, span);
  return y.map((value, index) =>
    value === null ? null : (before[index][0] + after[index][0] - value) / (before[index][1] + after[index][1] - 1),
  );
}

/** For each place, the sum and the weight of the values up to it, in the order given. */
function faded(places, x, y, span) {
  const found = [];
  let [sum, weight, last] = [0, 0, x[places[0]]];
  for (const index of places) {
    const fade = Math.exp(-Math.abs(x[index] - last) / span);
    [sum, weight, last] = [sum * fade + y[index], weight * fade + 1, x[index]];
    found[index] = [sum, weight];
  }
  return found;
}
