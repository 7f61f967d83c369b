// Creates elements. Recorded data only becomes text nodes: nothing on the page parses markup.

/**
 * Create an element.
 *
 * An attribute that starts with "on" is a listener; `data`, `vars` and `style` hold data attributes, CSS variables and
 * styles; true and false set and omit an attribute.
 *
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children nodes, texts and nested lists of them
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  append(element, children);
  return element;
}

/**
 * Replace the content of an element.
 * @param {Element} element
 * @param {...any} children nodes, texts and nested lists of them; null, undefined and false are left out
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name === "style") Object.assign(element.style, value);
  else if (name === "vars")
    for (const [key, each] of Object.entries(value)) element.style.setProperty(`--${key}`, each);
  else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
  else element.setAttribute(name, value === true ? "" : String(value));
}

function append(element, children) {
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * A drop-down list.
 * @param {string} label
 * @param {string[][]} options values with labels
 * @param {string} value
 * @param {(value: string) => void} changed
 */
export function select(label, options, value, changed) {
  const list = h(
    "select",
    { "aria-label": label, onchange: (event) => changed(event.target.value) },
    options.map(([key, shown]) => h("option", { value: key, selected: key === value }, shown)),
  );
  return h("label", { class: "field" }, h("span", {}, label), list);
}

/**
 * A switch.
 * @param {string} label
 * @param {boolean} on
 * @param {(on: boolean) => void} changed
 */
export function toggle(label, on, changed) {
  const box = h("input", { type: "checkbox", checked: on, onchange: (event) => changed(event.target.checked) });
  return h("label", { class: "toggle" }, box, h("span", {}, label));
}

/** A button that opens a panel, which a click elsewhere or Escape closes. @param {string} label @param {any} content */
export function menu(label, content) {
  const details = h("details", { class: "menu" }, h("summary", { class: "button" }, label), h("div", { class: "panel-menu" }, content));
  const close = (event) => {
    if (event.type === "keydown" ? event.key === "Escape" : event.composedPath && !event.composedPath().includes(details)) details.open = false;
  };
  details.addEventListener("toggle", () => {
    for (const kind of ["click", "keydown"])
      if (details.open) document.addEventListener(kind, close);
      else document.removeEventListener(kind, close);
  });
  return details;
}

/** The `data-key` of the focused element, if it is in an element that is about to be filled again. */
export function focusedKey(element) {
  const focused = document.activeElement;
  return focused instanceof HTMLElement && element.contains(focused) ? (focused.dataset.key ?? null) : null;
}

/** Focus the element with a key again. */
export function focusKey(element, key) {
  if (key !== null) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

/** A message in place of missing content. */
export function empty(title, text = "") {
  return h("div", { class: "empty" }, h("strong", {}, title), text && h("p", {}, text));
}

/**
 * A message in place of content that could not be loaded.
 * @param {Error} error
 * @param {() => void} retry
 */
export function failed(error, retry, title = "Loading failed") {
  return h("div", { class: "empty", role: "alert" }, h("strong", {}, title), h("p", {}, error.message), retryButton(retry));
}

/** @param {() => void} retry */
export function retryButton(retry) {
  return h("button", { type: "button", class: "small", onclick: retry }, "Try again");
}

/**
 * Names with their values; those without a value are left out.
 * @param {[string, any][]} entries
 */
export function factList(entries) {
  const there = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return there.length
    ? h(
        "dl",
        {},
        there.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]),
      )
    : h("p", { class: "muted" }, "none");
}

/**
 * Debounce: call something once, a while after the last request.
 * @param {() => void} action
 */
export function later(action, milliseconds = 200) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}

/**
 * Throttle: call something at most once per interval, at its end if requested in the meantime.
 * @param {() => void} action
 */
export function throttled(action, milliseconds = 1000) {
  let timer = 0;
  let last = 0;
  return () => {
    if (timer) return;
    const wait = Math.max(0, last + milliseconds - Date.now());
    timer = setTimeout(() => {
      timer = 0;
      last = Date.now();
      action();
    }, wait);
  };
}
