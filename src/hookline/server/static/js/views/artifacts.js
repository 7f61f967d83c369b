// Artifacts: the list, and one version with its files, metadata, and the runs that saved and used it.

import { LatestRequest, NoAnswerError } from "../api.js";
import { empty, failed, fill, h, throttled } from "../dom.js";
import { bytes, dateTime, whole } from "../format.js";
import { address } from "../page_state.js";
import { end, numberTable } from "../tables.js";

export class ArtifactsView {
  #app;
  #listRequest = new LatestRequest();
  #detailsRequest = new LatestRequest();
  #unsubscribe;
  #isListed = false;
  #detailed = "";

  constructor(app) {
    this.#app = app;
    this.list = h("div");
    this.details = h("section", { class: "artifact" });
    this.element = h("div", { class: "page artifacts" }, h("section", {}, h("h2", {}, "Artifacts"), this.list), this.details);
    const refresh = throttled(() => this.element.isConnected && this.#load(), 2000);
    this.#unsubscribe = app.store.listen(refresh);
    this.#load();
  }

  destroy() {
    this.#unsubscribe();
    this.#listRequest.cancel();
    this.#detailsRequest.cancel();
  }

  get #shown() {
    return this.#app.router.parameters.get("artifact");
  }

  async #load() {
    try {
      const answer = await this.#listRequest.get("artifacts", {});
      if (answer) this.#showList(answer.artifacts);
      this.#isListed ||= answer !== null;
      const name = this.#shown ?? answer?.artifacts[0]?.id;
      if (answer && name) await this.#loadDetails(name);
    } catch (error) {
      if (error instanceof NoAnswerError && this.#isListed) return;
      fill(this.list, failed(error, () => this.#load()));
    }
  }

  async #loadDetails(name) {
    try {
      const found = await this.#detailsRequest.get("artifact", { name });
      if (!found) return;
      fill(this.details, this.#parts(found));
      this.#detailed = name;
    } catch (error) {
      if (error instanceof NoAnswerError && this.#detailed === name) return;
      this.#detailed = "";
      fill(this.details, failed(error, () => this.#loadDetails(name), "This version cannot be shown"));
    }
  }

  #open(name) {
    this.#app.router.push({ artifact: name });
    this.#load();
  }

  /** A link to a version that is opened here. */
  #link(name, text) {
    const open = (event) => {
      event.preventDefault();
      this.#open(name);
    };
    return h("a", { href: address("artifacts", new URLSearchParams({ artifact: name })), onclick: open }, text);
  }

  #showList(artifacts) {
    if (!artifacts.length) {
      const text = 'Save one with run.save_artifact("model", "out/", kind="model").';
      return void fill(this.list, empty("There are no artifacts", text));
    }
    const rows = artifacts.map(({ id, versions, aliases, latest }) =>
      h(
        "tr",
        { data: { artifact: id } },
        h("th", { scope: "row" }, this.#link(id, id)),
        h("td", {}, latest.problem ? h("b", { class: "bad" }, "damaged") : latest.kind),
        end(whole(versions)),
        h("td", {}, aliasChips(Object.entries(aliases).map(([alias, version]) => `${alias} ${version}`))),
        end(whole(latest.files)),
        end(bytes(latest.bytes)),
        h("td", {}, h("time", {}, dateTime(latest.time))),
      ),
    );
    const heads = ["artifact", "kind", ">versions", "aliases", ">files", ">size", "saved"];
    fill(this.list, numberTable(heads, rows, { tabindex: "0", role: "region", "aria-label": "Artifacts" }));
  }

  #parts(found) {
    const { id, version, versions, metadata, files } = found;
    const facts = [
      ["kind", version.kind],
      ["saved", dateTime(version.time)],
      ["size", `${bytes(version.bytes)} in ${whole(version.files)} file${version.files === 1 ? "" : "s"}`],
      ["digest", `sha256:${version.digest}`],
      ...Object.entries(metadata).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]),
    ];
    return [
      h("h2", {}, `${id}:${version.version} `, aliasChips(version.aliases)),
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { class: "text" }, value)))),
      h("h3", {}, "Lineage"),
      this.#lineage(found),
      h("h3", {}, "Files ", h("span", { class: "count" }, shownOf(files.length, found.total_files))),
      fileTable(`${id}:${version.version}`, files),
      h("h3", {}, "Versions ", h("span", { class: "count" }, shownOf(versions.length, found.total_versions))),
      this.#versionTable(id, version, versions),
    ];
  }

  /** The runs that saved the version, the version, and the runs that used it, from left to right. */
  #lineage({ id, version, runs }) {
    const column = (role, none) => {
      const own = runs.filter((each) => each.role === role);
      return h(
        "ul",
        { class: "lineage-runs", data: { role }, "aria-label": role === "saved" ? "Saved by" : "Used by" },
        own.map((each) => h("li", {}, this.#run(each))),
        !own.length && h("li", { class: "muted" }, none),
      );
    };
    return h(
      "div",
      { class: "lineage" },
      column("saved", "saved outside of a run"),
      h("span", { "aria-hidden": "true" }, "→"),
      h("b", { class: "lineage-version" }, `${id}:${version.version}`),
      h("span", { "aria-hidden": "true" }, "→"),
      column("used", "not used by a run yet"),
    );
  }

  #run({ run, exists, time }) {
    if (!exists) return h("span", { class: "muted", title: "This run was deleted, or is elsewhere." }, run);
    const href = address("run", new URLSearchParams([["run", run]]));
    return h("a", { href, title: `${run} · ${dateTime(time)}` }, this.#app.store.nameOf(run));
  }

  #versionTable(id, shown, versions) {
    const rows = versions.map((each) =>
      h(
        "tr",
        { data: { version: each.version }, "aria-current": each.version === shown.version ? "true" : null },
        h("th", { scope: "row" }, this.#link(`${id}:${each.version}`, each.version)),
        h("td", {}, each.problem ? h("b", { class: "bad" }, each.problem) : aliasChips(each.aliases)),
        end(whole(each.files)),
        end(bytes(each.bytes)),
        h("td", {}, h("time", {}, dateTime(each.time))),
        h("td", {}, each.run && this.#run({ run: each.run, exists: this.#app.store.byId.has(each.run), time: each.time })),
      ),
    );
    const attributes = { tabindex: "0", role: "region", "aria-label": "Versions" };
    return numberTable(["version", "aliases", ">files", ">size", "saved", "by"], rows, attributes);
  }
}

function aliasChips(aliases) {
  return aliases.map((alias) => [h("span", { class: "chip" }, alias), " "]);
}

function shownOf(count, total) {
  return count < total ? `${whole(count)} of ${whole(total)}` : whole(total);
}

function fileTable(name, files) {
  const rows = files.map((file) => {
    const href = `/api/artifact/file?${new URLSearchParams({ name, file: file.path })}`;
    return h(
      "tr",
      { data: { file: file.path } },
      h("th", { scope: "row" }, file.uri ? file.path : h("a", { href, download: "" }, file.path)),
      end(file.size === undefined || file.size === null ? "–" : bytes(file.size)),
      h("td", { class: "wide-text muted" }, file.uri || file.blob.slice(0, 12)),
    );
  });
  const attributes = { tabindex: "0", role: "region", "aria-label": "Files" };
  return numberTable(["file", ">size", "digest or location"], rows, attributes);
}
