// The page: its tabs, the view that the address names, keys, and the connection to the server.

import { empty, fill, h } from "./dom.js";
import { ago } from "./format.js";
import { mayRead } from "./login.js";
import { Router, address } from "./router.js";
import { RunBook } from "./run_book.js";
import { Selection } from "./selection.js";
import { bindThemeButton } from "./theme.js";
import { ChartsView } from "./views/charts.js";
import { ExperimentView } from "./views/experiment.js";
import { HooksView } from "./views/hooks.js";
import { RolloutsView } from "./views/rollouts.js";
import { RunsView } from "./views/runs.js";
import { SystemView } from "./views/system.js";

/** A map and no object: an address may say "constructor", which every object has. */
const VIEWS = new Map([
  ["runs", RunsView],
  ["charts", ChartsView],
  ["rollouts", RolloutsView],
  ["experiment", ExperimentView],
  ["hooks", HooksView],
  ["system", SystemView],
]);
const KEYS = [
  ["1 … 6", "the views, from left to right"],
  ["/", "find"],
  ["j, k", "next and previous sample"],
  ["t", "light or dark"],
  ["drag", "zoom all charts; double click or Esc shows everything"],
  ["+, −, ←, →", "zoom in and out, move along x"],
  ["?", "these keys"],
];

const root = document.getElementById("view");
const tabs = document.getElementById("tabs");
const live = document.getElementById("live");
const keys = document.getElementById("keys");
const book = new RunBook();
const router = new Router(() => show());
const app = { book, router, selection: new Selection(book, router) };
let view = null;

function show() {
  showTabs();
  if (!book.isKnown) return;
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

/** In place of a view that the address names and that there is none of. */
function notFound(name) {
  const text = `The address names the view ${name}. Choose one of the views above.`;
  return { element: h("section", { class: "page" }, empty("There is no view of this name", text)), destroy() {} };
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
    ? "What happens is shown as it happens."
    : "The server does not answer. What is shown is from before.";
}

function showKeys() {
  const rows = KEYS.map(([key, meaning]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, meaning)]);
  fill(keys, h("h2", {}, "Keys"), h("dl", {}, rows), h("form", { method: "dialog" }, h("button", {}, "Close")));
  keys.showModal();
}

/** Whether what has the focus needs a key itself: text fields need all, a slider those that move it. */
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
  event.preventDefault(); // the address stays: it names the view and the runs
  root.focus();
});
app.selection.listen(showTabs);
document.addEventListener("keydown", press);
setInterval(() => {
  for (const element of document.querySelectorAll("time[data-since]"))
    element.textContent = ago(Number(element.dataset.since));
}, 1000);
fill(root, empty("Reading the runs …"));
showLive(false);
show();
book.listen(() => view ?? show());
if (await mayRead())
  book.follow((isLive) => {
    showLive(isLive);
    if (!isLive) mayRead(); // the token may be another one since
  });
