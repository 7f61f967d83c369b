// The page: its tabs, the current view, keyboard shortcuts, and the connection to the server.

import { canRead } from "./api.js";
import { empty, fill, h } from "./dom.js";
import { ago } from "./format.js";
import { Router, address } from "./page_state.js";
import { RunStore, Selection } from "./run_store.js";
import { bindThemeButton } from "./theme.js";
import { ChartsView, SystemView } from "./views/charts.js";
import { ExperimentView } from "./views/experiment.js";
import { HooksView } from "./views/hooks.js";
import { RolloutsView } from "./views/rollouts.js";
import { RunsView } from "./views/runs.js";

/** A Map, not an object: the URL may name "constructor", which every object has. */
const VIEWS = new Map([
  ["runs", RunsView],
  ["charts", ChartsView],
  ["rollouts", RolloutsView],
  ["experiment", ExperimentView],
  ["hooks", HooksView],
  ["system", SystemView],
]);
const KEYS = [
  ["1 … 6", "switch views, from left to right"],
  ["/", "find"],
  ["j, k", "next and previous sample"],
  ["t", "toggle light and dark theme"],
  ["drag", "zoom all charts; double click or Esc resets"],
  ["+, −, ←, →", "zoom in and out, move along x"],
  ["?", "show keyboard shortcuts"],
];

const root = document.getElementById("view");
const tabs = document.getElementById("tabs");
const live = document.getElementById("live");
const keys = document.getElementById("keys");
const store = new RunStore();
const router = new Router(() => show());
const app = { store, router, selection: new Selection(store, router) };
let view = null;

function show() {
  showTabs();
  if (!store.isKnown) return;
  const name = router.view;
  const View = VIEWS.get(name);
  view?.destroy();
  document.title = `${View ? titleOf(name) : "Not found"} · hookline`;
  root.dataset.view = View ? name : "";
  view = View ? new View(app) : notFound(name);
  fill(root, view.element);
}

function titleOf(name) {
  return name[0].toUpperCase() + name.slice(1);
}

function notFound(name) {
  const text = `The URL names the view ${name}. Choose one of the views above.`;
  return { element: h("section", { class: "page" }, empty("There is no such view", text)), destroy() {} };
}

function showTabs() {
  const kept = new URLSearchParams(router.parameters.getAll("run").map((id) => ["run", id]));
  const links = [...VIEWS.keys()].map((name) =>
    h(
      "a",
      {
        href: address(name, name === "experiment" || name === "runs" ? new URLSearchParams() : kept),
        "aria-current": router.view === name ? "page" : null,
      },
      titleOf(name),
    ),
  );
  fill(tabs, links);
  tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function showLive(isLive) {
  live.dataset.live = String(isLive);
  live.textContent = isLive ? "live" : "reconnecting";
  live.title = isLive
    ? "The page is updated live."
    : "The server does not respond. The page shows older data.";
}

function showKeys() {
  const rows = KEYS.map(([key, meaning]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, meaning)]);
  fill(keys, h("h2", {}, "Keyboard shortcuts"), h("dl", {}, rows), h("form", { method: "dialog" }, h("button", {}, "Close")));
  keys.showModal();
}

/** Whether the focused element handles a key itself: text fields handle all, a slider those that move it. */
function takes(element, key) {
  const input = element.closest("input");
  if (input?.type === "checkbox") return false;
  if (input?.type === "range") return /^(Arrow|Page|Home|End)/.test(key);
  return element.closest("input, select, textarea, dialog") !== null;
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || takes(event.target, event.key)) return;
  const name = [...VIEWS.keys()][Number(event.key) - 1];
  if (name) router.go(name);
  else if (event.key === "t") document.getElementById("theme").click();
  else if (event.key === "?") showKeys();
  else if (event.key === "/") {
    event.preventDefault();
    (root.querySelector("[data-find]") ?? root.querySelector("input[type=search]"))?.focus();
  } else view?.press?.(event);
}

bindThemeButton(document.getElementById("theme"));
document.getElementById("help").addEventListener("click", showKeys);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // keep the URL: it names the view and the runs
  root.focus();
});
app.selection.listen(showTabs);
document.addEventListener("keydown", press);
setInterval(() => {
  for (const element of document.querySelectorAll("time[data-since]"))
    element.textContent = ago(Number(element.dataset.since));
}, 1000);
fill(root, empty("Loading runs …"));
showLive(false);
show();
store.listen(() => view ?? show());
if (await canRead())
  store.follow((isLive) => {
    showLive(isLive);
    if (!isLive) canRead(); // the token may have changed
  });
