// The range of an axis: of everything, or without the few values that would press all others flat.

const FAR = 2.5;

/**
 * @param {number[]} values finite
 * @param {{isLog: boolean, leavesOut: boolean}} how
 * @returns {{low: number, high: number, outside: number}}
 */
export function valueRange(values, { isLog, leavesOut }) {
  const usable = isLog ? values.filter((value) => value > 0).map(Math.log10) : values;
  if (!usable.length) return isLog ? { low: 0.1, high: 10, outside: 0 } : { low: 0, high: 1, outside: 0 };
  const sorted = Float64Array.from(usable).sort();
  let [low, high] = [sorted[0], sorted[sorted.length - 1]];
  if (leavesOut && sorted.length >= 20) {
    const [near, far] = [quantile(sorted, 0.03), quantile(sorted, 0.97)];
    const reach = (far - near) * FAR;
    if (reach > 0) [low, high] = [Math.max(low, near - reach), Math.min(high, far + reach)];
    if (low > sorted[0]) low = least(sorted, low);
    if (high < sorted[sorted.length - 1]) high = most(sorted, high);
  }
  const outside = sorted.filter((value) => value < low || value > high).length;
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
  if (isLog) return { low: roundedDown(10 ** (low - margin)), high: 10 ** (high + margin), outside };
  return { low: low - margin, high: high + margin, outside };
}

/** To one digit: the marks of a logarithmic axis are counted from its lower end. */
function roundedDown(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return Math.floor(value / unit) * unit || value;
}

function quantile(sorted, share) {
  return sorted[Math.round((sorted.length - 1) * share)];
}

function least(sorted, limit) {
  return sorted.find((value) => value >= limit);
}

function most(sorted, limit) {
  return sorted.findLast((value) => value <= limit);
}
