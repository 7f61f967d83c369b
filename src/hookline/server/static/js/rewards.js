// Rewards as numbers and as bars.

import { h } from "./dom.js";
import { number } from "./format.js";

/** @param {number | string | null} value */
export function reward(value) {
  const sign = typeof value !== "number" ? "none" : value > 0 ? "plus" : value < 0 ? "minus" : "zero";
  return h("b", { class: "reward", data: { sign } }, number(value, 3));
}

/** How much better than its group a sample is. @param {number | string | null} value */
export function advantage(value) {
  if (value === null) return null;
  const sign = Number(value) < 0 ? "minus" : "plus";
  return h("span", { class: "advantage", data: { sign } }, `${Number(value) > 0 ? "+" : ""}${number(value, 3)}`);
}

/** What each reward function gave. @param {{rewards: Record<string, any>, reward: any}} sample */
export function rewardBars(sample) {
  const entries = Object.entries(sample.rewards);
  if (!entries.length) return h("p", {}, reward(sample.reward));
  const most = Math.max(1e-12, ...entries.map(([, value]) => size(value)));
  const rows = entries.map(([name, value]) => row(name, value, size(value) / most));
  const total = h("div", { class: "reward-row total" }, h("span", {}, "total"), h("span"), reward(sample.reward));
  return h("div", { class: "rewards" }, rows, total);
}

function row(name, value, share) {
  const sign = Number(value) < 0 ? "minus" : "plus";
  const bar = h("span", { class: "track" }, h("i", { data: { sign }, style: { width: `${share * 100}%` } }));
  return h("div", { class: "reward-row" }, h("span", { title: name }, name), bar, reward(value));
}

function size(value) {
  const found = Math.abs(Number(value));
  return Number.isFinite(found) ? found : 0;
}
