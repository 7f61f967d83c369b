// The page: its tabs, the current view, keyboard shortcuts, and the connection to the server.

import { canRead, isLoggedOut, request } from "./api.js";
import { empty, fill, h } from "./dom.js";
import { ago, plural } from "./format.js";
import { Router, address, recall } from "./page_state.js";
import { RunStore, Selection } from "./run_store.js";
import { bindThemeButton } from "./theme.js";

/**
 * The views by their names in the address. Each is loaded when it is opened; one under another's tab names it.
 * A Map, not an object: the address may name "constructor", which every object has.
 * @type {Map<string, {load: () => Promise<any>, tab?: string, keepsRuns?: boolean}>}
 */
const VIEWS = new Map([
  ["runs", { load: async () => (await import("./views/runs.js")).RunsView }],
  ["run", { load: async () => (await import("./views/run.js")).RunView, tab: "runs", keepsRuns: true }],
  ["compare", { load: async () => (await import("./views/compare.js")).CompareView, tab: "runs", keepsRuns: true }],
  ["charts", { load: async () => (await import("./views/charts.js")).ChartsView, keepsRuns: true }],
  ["media", { load: async () => (await import("./views/media.js")).MediaView, keepsRuns: true }],
  ["rollouts", { load: async () => (await import("./views/rollouts.js")).RolloutsView, keepsRuns: true }],
  ["experiment", { load: async () => (await import("./views/experiment.js")).ExperimentView }],
  ["sweep", { load: async () => (await import("./views/sweep.js")).SweepView, keepsRuns: true }],
  ["hooks", { load: async () => (await import("./views/hooks.js")).HooksView, keepsRuns: true }],
  ["system", { load: async () => (await import("./views/charts.js")).SystemView, keepsRuns: true }],
  ["artifacts", { load: async () => (await import("./views/artifacts.js")).ArtifactsView }],
  ["control", { load: async () => (await import("./views/control.js")).ControlView, keepsRuns: true, tab: "hooks" }],
  ["alerts", { load: async () => (await import("./views/alerts.js")).AlertsView, tab: "hooks" }],
  ["console", { load: async () => (await import("./views/console.js")).ConsoleView, keepsRuns: true }],
]);
/** The views with a tab: those that are not part of another's. */
const TABS = [...VIEWS].filter(([, { tab }]) => !tab).map(([name]) => name);
/** The parameters of the address that select runs: a change of the view keeps them. */
const SELECTS = ["run", "project", "where"];
const KEYS = [
  [`1 … ${Math.min(9, TABS.length)}`, "switch views, from left to right"],
  ["/", "find"],
  ["↑, ↓", "previous and next run of the table"],
  ["j, k", "next and previous sample, or step of media"],
  ["g, o", "rollouts: the sample's group, its prompt over the training"],
  ["[, ]", "rollouts: previous and next sample of the group"],
  ["Enter", "rollouts: from the list to the sample"],
  ["t", "toggle light and dark theme; rollouts: tokens"],
  ["r", "rollouts: raw text"],
  ["y, n, m", "rollouts: annotate as good or bad, write a note"],
  ["drag", "zoom all charts; double click or Esc resets"],
  ["Tab, then arrows", "move along the lines of a chart, and between them"],
  ["+, −, ←, →", "zoom in and out, move along x"],
  ["?", "show keyboard shortcuts"],
];

/** How often open alerts are looked for. */
const ALERTS_MS = 15_000;

const root = document.getElementById("view");
const tabs = document.getElementById("tabs");
const live = document.getElementById("live");
const keys = /** @type {HTMLDialogElement} */ (document.getElementById("keys"));
const store = new RunStore();
const router = new Router(() => show());
const app = { store, router, selection: new Selection(store, router) };
let view = null;

/**
 * The address here for one that MLflow's client prints: that of a run, or of the runs of an experiment. The id of a run
 * begins with that of its experiment.
 * @param {string} name
 */
function addressOfMlflow(name) {
  const [, experiment, run] = name.match(/^experiments\/(\d+)(?:\/runs\/(\w+))?$/) ?? [];
  if (!experiment) return null;
  const found = store.all.find(({ id }) => id.split("/")[1].startsWith(run ?? experiment.padStart(18, "0")));
  if (!found) return address("runs", new URLSearchParams());
  return run
    ? address("run", new URLSearchParams({ run: found.id }))
    : address("runs", new URLSearchParams({ project: found.project }));
}

async function show() {
  showTabs();
  if (!store.isKnown) return;
  const name = router.view;
  const other = addressOfMlflow(name);
  if (other) {
    location.replace(other);
    return;
  }
  const route = VIEWS.get(name);
  view?.destroy();
  view = { element: empty("Loading …"), destroy() {} };
  document.title = `${route ? titleOf(name) : "Not found"} · hookline`;
  root.dataset.view = route ? name : "";
  const opened = view;
  await app.selection.follow();
  const next = route ? await opens(route) : notFound(name);
  if (view !== opened) return; // another view was opened in the meantime
  view = next;
  fill(root, view.element);
}

async function opens(route) {
  try {
    const View = await route.load();
    return new View(app);
  } catch (error) {
    console.error(error);
    return { element: h("section", { class: "page" }, empty("The view cannot be shown", error.message)), destroy() {} };
  }
}

function titleOf(name) {
  return name[0].toUpperCase() + name.slice(1);
}

function notFound(name) {
  const text = `The URL names the view ${name}. Choose one of the views above.`;
  return { element: h("section", { class: "page" }, empty("There is no such view", text)), destroy() {} };
}

function showTabs() {
  const kept = new URLSearchParams([...router.parameters].filter(([name]) => SELECTS.includes(name)));
  const shown = VIEWS.get(router.view)?.tab ?? router.view;
  const links = TABS.map((name) => {
    const chosen = VIEWS.get(name).keepsRuns || name === "runs" ? kept : new URLSearchParams();
    // A view may remember its settings; a link to it without them shows its defaults.
    const remembered = new URLSearchParams(recall(`${name}.parameters`, ""));
    return h(
      "a",
      {
        href: address(name, new URLSearchParams([...chosen, ...remembered])),
        "aria-current": shown === name ? "page" : null,
      },
      titleOf(name),
    );
  });
  fill(tabs, links);
  tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function showLive(isLive) {
  const [text, title] = isLoggedOut
    ? ["not logged in", "Log in to see the runs."]
    : isLive
      ? ["live", "The page is updated live."]
      : ["reconnecting", "The server does not respond. The page shows older data."];
  live.dataset.live = String(isLive && !isLoggedOut);
  Object.assign(live, { textContent: text, title });
}

/** Link to the unacknowledged alerts, in every view. */
async function showAlerts() {
  if (document.hidden || live.dataset.live !== "true") return;
  const { alerts } = await request("alerts").catch(() => ({ alerts: [] }));
  const open = alerts.filter((each) => each.state !== "acknowledged" && each.state !== "muted").length;
  const link = document.getElementById("alerts");
  link.hidden = !open;
  link.textContent = plural(open, "alert");
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
  const name = TABS[Number(event.key) - 1];
  if (name) location.hash = /** @type {HTMLAnchorElement} */ (tabs.children[Number(event.key) - 1]).hash;
  else if (view?.keys?.has(event.key)) view.press(event);
  else if (event.key === "t") document.getElementById("theme").click();
  else if (event.key === "?") showKeys();
  else if (event.key === "/") {
    event.preventDefault();
    const field = root.querySelector("[data-find]") ?? root.querySelector("input[type=search]");
    /** @type {HTMLElement | null} */ (field)?.focus();
  } else view?.press?.(event);
}

bindThemeButton(/** @type {HTMLButtonElement} */ (document.getElementById("theme")));
document.getElementById("help").addEventListener("click", showKeys);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // keep the URL: it names the view and the runs
  root.focus();
});
app.selection.listen(showTabs);
addEventListener("addresschange", showTabs); // whose links keep the selected runs
document.addEventListener("keydown", press);
setInterval(() => {
  for (const element of document.querySelectorAll("time"))
    if (element.dataset.since) element.textContent = ago(Number(element.dataset.since));
}, 1000);
fill(root, empty("Loading runs …"));
showLive(false);
show();
store.listen(() => view ?? show());
setTimeout(showAlerts, 2000); // after the view, which people wait for
setInterval(showAlerts, ALERTS_MS);
addEventListener("alertschange", showAlerts);
if (await canRead())
  store.follow(async (isLive) => {
    showLive(isLive);
    if (!isLive && !(await canRead())) showLive(false); // the token may have changed
  });
else showLive(false);
