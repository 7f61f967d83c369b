// The environment of a run: command, commit and changes; machine, variables and packages.

import { request } from "./api.js";
import { download } from "./chart_panel.js";
import { copyButton } from "./config_tree.js";
import { recordedDiff } from "./diff_view.js";
import { factList, failed, fill, h } from "./dom.js";
import { bytes, dateTime, whole } from "./format.js";

/** How much of a diff is shown; the whole is a download. */
const MAX_DIFF = 200_000;
const MAX_WHOLE_DIFF = 16 << 20;

/** The command, the commit and the changes against it. @param {string} id the run @param {any} found */
export function codeParts(id, { sessions, diff_characters: characters }) {
  const latest = sessions.at(-1);
  if (!latest) return null;
  const git = latest.git ?? {};
  const command = Array.isArray(latest.command) ? latest.command.map(shellWord).join(" ") : "";
  const changes = git.changed === undefined ? "" : git.changed ? "yes, below" : "none";
  const known = {
    directory: latest.directory,
    branch: git.branch,
    remote: git.remote,
    "uncommitted changes": changes,
    "changes left out": texts(git.diff?.left_out),
    "untracked files": untracked(git),
    problem: git.problem,
  };
  return [
    command && h("div", { class: "command" }, h("pre", { tabindex: "0", "aria-label": "Command" }, command), copyButton("Copy the command", () => command)),
    git.commit && h("p", { class: "commit" }, h("span", { class: "muted" }, "commit "), h("code", {}, git.commit), copyButton("Copy the commit", () => String(git.commit))),
    factList(Object.entries(known)),
    characters > 0 && changesPart(id, characters),
  ];
}

/** The changes, loaded when they are opened: a diff may be long. */
function changesPart(id, characters) {
  const body = h("div");
  const load = async () => {
    if (body.childElementCount) return;
    fill(body, h("p", { class: "muted" }, "Loading …"));
    try {
      const { diff } = await request("environment", { id, diff_characters: String(MAX_DIFF) });
      const isCut = characters > diff.length;
      fill(
        body,
        isCut && h("p", { class: "message", data: { status: "stalled" } }, `The first ${whole(diff.length)} of ${whole(characters)} characters are shown.`),
        recordedDiff(diff),
      );
    } catch (error) {
      fill(body, failed(error, () => void (fill(body), load())));
    }
  };
  const save = async () => {
    const { diff } = await request("environment", { id, diff_characters: String(MAX_WHOLE_DIFF) });
    download(new Blob([diff], { type: "text/x-diff" }), `${id}.diff`);
  };
  return h(
    "details",
    { class: "changes", ontoggle: (event) => event.target.open && load() },
    h("summary", {}, "Changes against the commit", h("span", { class: "count" }, `${whole(characters)} characters`)),
    h("p", {}, h("button", { type: "button", onclick: save }, "Download the diff")),
    body,
  );
}

/** An argument as a shell takes it. */
function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`;
}

/** The machine, the variables and the packages. @param {any} found */
export function environmentParts({ sessions, ranks }) {
  const latest = sessions.at(-1);
  if (!latest) return null;
  const { host = {}, hardware = {}, python = {}, container = {}, variables = {} } = latest;
  const known = {
    python: [python.implementation, python.version].filter(Boolean).join(" "),
    executable: python.executable,
    system: host.os ?? host.platform,
    host: host.name,
    user: host.user,
    processor: hardware.cpu && `${hardware.cpu}, ${hardware.cores} cores`,
    memory: hardware.memory_bytes && bytes(hardware.memory_bytes),
    GPUs: texts(hardware.gpus, (gpu) => gpu?.name),
    container: [container.kind, container.id].filter(Boolean).join(" "),
    ...variables,
    ...otherRanks(ranks),
    sessions: sessions.length > 1 ? `${sessions.length}, the latest since ${dateTime(latest.time)}` : "",
  };
  return [factList(Object.entries(known)), packageList(latest.packages ?? [])];
}

/** What differs on other ranks, by host. */
function otherRanks(ranks) {
  const hosts = Map.groupBy(ranks, ({ host = "" }) => host);
  return Object.fromEntries(
    Array.from(hosts, ([host, own]) => {
      const gpus = own.map(({ hardware }) => texts(hardware?.gpus, (gpu) => gpu?.name)).find(Boolean);
      const others = own.filter(({ packages }) => packages?.length).map(({ rank }) => rank);
      const differ = others.length ? `other packages on ${others.join(", ")}` : "";
      const facts = [own.map(({ rank }) => rank).join(", "), gpus, differ];
      return [`ranks on ${host || "an unknown host"}`, facts.filter(Boolean).join("; ")];
    }),
  );
}

/** In a run from elsewhere, the value may not be a list. */
/** @param {any} value @param {(each: any) => string} text */
function texts(value, text = String) {
  return Array.isArray(value) ? value.map((each) => text(each)).join(", ") : "";
}

function untracked({ untracked: count, files }) {
  if (!count) return "";
  return Array.isArray(files) ? `${whole(files.length)} of ${whole(count)} kept` : `${whole(count)}, not kept`;
}

function packageList(packages) {
  if (!packages.length) return null;
  const list = h("pre", { class: "packages", tabindex: "0", role: "region", "aria-label": "Packages" });
  const count = h("span", { class: "count" });
  const show = (text) => {
    const found = packages.filter((each) => each.includes(text.trim().toLowerCase()));
    fill(list, found.join("\n"));
    fill(count, `${whole(found.length)} of ${whole(packages.length)}`);
  };
  show("");
  return [
    h("h4", {}, "Packages ", count),
    h("input", {
      type: "search",
      placeholder: "Find a package",
      "aria-label": "Find a package",
      oninput: (event) => show(event.target.value),
    }),
    list,
  ];
}
