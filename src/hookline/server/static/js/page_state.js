// The state of the page: view and parameters in the URL, settings in the browser's storage.

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

  /** Change parameters of the current view, without a new history entry. */
  set(changes) {
    history.replaceState(null, "", this.#addressWith(changes));
    dispatchEvent(new Event("addresschange"));
  }

  /** Change parameters of the current view as a step that the browser can go back from. */
  push(changes) {
    const next = this.#addressWith(changes);
    if (next === location.hash) return;
    history.pushState(null, "", next);
    dispatchEvent(new Event("addresschange"));
  }

  #addressWith(changes) {
    const parameters = this.parameters;
    for (const [name, value] of Object.entries(changes)) {
      parameters.delete(name);
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== null && each !== undefined && each !== "") parameters.append(name, each);
      }
    }
    return address(this.view, parameters);
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

const PREFIX = "hookline.";

/**
 * @template T
 * @param {string} name
 * @param {T} otherwise
 * @returns {T}
 */
export function recall(name, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/**
 * @param {string} name
 * @param {unknown} value
 */
export function remember(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Without storage, the setting lasts for this visit.
  }
}
