// Which view is shown, with which parameters: both stand in the address, so it can be copied, and goes back.

export class Router {
  #changed;

  /** @param {(view: string, parameters: URLSearchParams) => void} changed */
  constructor(changed) {
    this.#changed = changed;
    addEventListener("hashchange", () => this.read());
  }

  get view() {
    return this.#parts()[0] || "runs";
  }

  get parameters() {
    return new URLSearchParams(this.#parts()[1] ?? "");
  }

  read() {
    this.#changed(this.view, this.parameters);
  }

  go(view, parameters = this.parameters) {
    location.hash = address(view, parameters);
  }

  /** Change parameters of the view that is shown, without a new entry in the history. */
  set(changes) {
    const parameters = this.parameters;
    for (const [name, value] of Object.entries(changes)) {
      parameters.delete(name);
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== null && each !== undefined && each !== "") parameters.append(name, each);
      }
    }
    history.replaceState(null, "", address(this.view, parameters));
  }

  #parts() {
    return location.hash.replace(/^#\/?/, "").split("?");
  }
}

/** @param {string} view @param {URLSearchParams} parameters */
export function address(view, parameters) {
  const text = parameters.toString().replaceAll("%2F", "/");
  return `#/${view}${text ? `?${text}` : ""}`;
}
