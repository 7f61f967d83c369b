// One element for each recorded medium. Captions, names and texts become text nodes; files are requested by digest from
// the server, which sends only known types. HTML is shown in a frame without scripts and without access to the page.

import { fill, h } from "./dom.js";
import { bytes, duration, whole } from "./format.js";
import { markdown } from "./markdown.js";
import { plotlyFigure } from "./plotly_figure.js";
import { plot } from "./svg_chart.js";
import { colourOf } from "./theme.js";

/**
 * @typedef {{run: string, step: number, name: string, index: number, type: string, blob: string, size: number,
 *   format: string, caption: string, data: any, cut: boolean}} Medium
 */

/** Larger files are loaded on request only. */
const MAX_PICTURE_BYTES = 24e6;
const MAX_PICTURE_PIXELS = 60e6;
const MAX_MASK_PIXELS = 24e6;
const MAX_TEXT_BYTES = 256e3;
const MAX_FIGURE_BYTES = 12e6;
const MAX_BOXES = 200;
const PLAYED = new Set(["mp4", "webm", "ogv"]);

/** The address of a file. @param {{run: string, blob: string}} medium */
export function blobAddress({ run, blob }, isDownload = false) {
  const query = new URLSearchParams({ run, digest: blob, ...(isDownload ? { download: "yes" } : {}) });
  return `/api/blob?${query}`;
}

/** The overlays of images that the viewer chose: the same for all images of a panel. */
export class Overlays {
  showsBoxes = true;
  /** @type {Map<string, boolean>} by the name of a mask */
  masks = new Map();

  /** Learn which masks there are: the first one is shown. @param {Medium[]} media */
  learn(media) {
    for (const name of media.flatMap((medium) => Object.keys(masksOf(medium))))
      if (!this.masks.has(name)) this.masks.set(name, this.masks.size === 0);
  }
}

function masksOf(medium) {
  const parts = medium.data?.parts ?? {};
  const named = Object.entries(parts).filter(([name, part]) => name.startsWith("masks/") && typeof part?.blob === "string");
  return Object.fromEntries(named.map(([name, part]) => [name.slice(6), part.blob]));
}

export function boxesOf(medium) {
  const boxes = Array.isArray(medium.data?.boxes) ? medium.data.boxes : [];
  return boxes.filter((each) => Array.isArray(each?.box) && each.box.length === 4 && each.box.every(Number.isFinite));
}

/**
 * A medium with its caption.
 * @param {Medium} medium
 * @param {Overlays} overlays
 */
export function mediumFigure(medium, overlays) {
  const caption = [medium.caption && h("span", {}, medium.caption), saveLink(medium)];
  return h(
    "figure",
    { class: "medium", data: { type: medium.type } },
    medium.cut ? h("p", { class: "muted" }, "Its data is too large to be shown here.") : content(medium, overlays),
    h("figcaption", {}, caption),
  );
}

function content(medium, overlays) {
  switch (medium.type) {
    case "image":
      return picture(medium, overlays);
    case "video":
      return PLAYED.has(medium.format) ? player("video", medium) : picture(medium, overlays);
    case "audio":
      return player("audio", medium);
    case "figure":
      return medium.format === "plotly.json"
        ? fetched(medium, MAX_FIGURE_BYTES, (text) => plotlyFigure(text, medium.name), false)
        : picture(medium, overlays);
    case "plot":
      return plot(medium.data, medium.name) ?? h("p", { class: "muted" }, "This plot is of an unknown kind.");
    case "markdown":
      return fetched(medium, MAX_TEXT_BYTES, markdown);
    case "text":
      return fetched(medium, MAX_TEXT_BYTES, (text) => h("pre", { class: "media-text" }, text));
    case "html":
      // Without allow-scripts and allow-same-origin: it can neither run code nor reach this page.
      return h("iframe", {
        src: blobAddress(medium),
        sandbox: "",
        referrerpolicy: "no-referrer",
        title: medium.caption || medium.name,
      });
    default:
      return file(medium);
  }
}

function saveLink(medium) {
  if (!medium.blob || medium.type === "file") return null;
  const title = `Download (${medium.format || "file"}, ${bytes(medium.size)})`;
  return h("a", { class: "save", href: blobAddress(medium, true), download: "", title, "aria-label": title }, "↓");
}

function file(medium) {
  const name = typeof medium.data?.file === "string" ? medium.data.file : `${medium.name}.${medium.format}`;
  return h(
    "p",
    { class: "file" },
    h("a", { href: blobAddress(medium, true), download: "" }, name.slice(0, 200)),
    h("span", { class: "muted" }, bytes(medium.size)),
  );
}

function player(tag, medium) {
  const facts = typeof medium.data?.seconds === "number" ? ` · ${duration(medium.data.seconds)}` : "";
  const element = h(tag, {
    src: blobAddress(medium),
    controls: true,
    preload: "metadata",
    "aria-label": `${medium.caption || medium.name}${facts}`,
  });
  element.addEventListener("error", () => element.replaceWith(unreadable(medium)));
  return element;
}

function unreadable(medium) {
  return h(
    "p",
    { class: "muted unreadable" },
    `This ${medium.type} cannot be shown: it is missing, damaged, or of a type that browsers do not show. `,
    h("a", { href: blobAddress(medium, true), download: "" }, "Download it"),
  );
}

/** A text, once it is loaded; only the beginning of a long one, unless it is needed as a whole. */
function fetched(medium, most, show, canCut = true) {
  const holder = h("div", { class: "fetched" }, h("p", { class: "muted" }, "Loading …"));
  const isLong = medium.size > most;
  if (isLong && !canCut)
    return fill(holder, h("p", { class: "muted" }, `It has ${bytes(medium.size)}: too large to be drawn here.`));
  const headers = isLong ? { Range: `bytes=0-${most - 1}` } : {};
  holder.ready = fetch(blobAddress(medium), { headers })
    .then(async (response) => {
      if (!response.ok) throw new Error((await response.json()).error);
      fill(
        holder,
        show(await response.text()),
        isLong && h("p", { class: "muted" }, `The first ${bytes(most)} of ${bytes(medium.size)}.`),
      );
    })
    .catch((error) => fill(holder, h("p", { class: "muted unreadable" }, error.message)));
  return holder;
}

function picture(medium, overlays) {
  const { width, height } = medium.data ?? {};
  const isKnown = width > 0 && height > 0;
  const isHuge = medium.size > MAX_PICTURE_BYTES || (isKnown && width * height > MAX_PICTURE_PIXELS);
  const holder = h("div", { class: "picture" });
  if (isHuge) {
    const size = isKnown ? `${whole(width)} × ${whole(height)}, ${bytes(medium.size)}` : bytes(medium.size);
    const button = h("button", { type: "button", onclick: () => showPicture(holder, medium, overlays) }, `Load (${size})`);
    return fill(holder, button);
  }
  showPicture(holder, medium, overlays);
  return holder;
}

function showPicture(holder, medium, overlays) {
  const { width, height } = medium.data ?? {};
  const image = h("img", { src: blobAddress(medium), alt: medium.caption || medium.name, decoding: "async" });
  const isKnown = width > 0 && height > 0;
  if (isKnown) {
    Object.assign(image, { width, height });
    // A few pixels are enlarged, and stay pixels.
    if (width < 96) Object.assign(image.style, { width: "96px", height: "auto", imageRendering: "pixelated" });
  }
  image.addEventListener("error", () => holder.replaceWith(unreadable(medium)));
  const title = `Enlarge ${medium.caption || medium.name}`;
  const frame = h("button", { type: "button", class: "frame", "aria-label": title }, image);
  frame.addEventListener("click", () => enlarge(medium, overlays));
  for (const [name, digest] of Object.entries(masksOf(medium)))
    if (overlays.masks.get(name)) frame.append(mask({ run: medium.run, blob: digest }, medium.data?.labels ?? {}));
  if (isKnown && overlays.showsBoxes)
    for (const box of boxesOf(medium).slice(0, MAX_BOXES)) frame.append(boxElement(box, medium.data, width, height));
  holder.ready = image.decode().catch(() => {});
  fill(holder, frame);
}

function boxElement({ box, label, score }, data, width, height) {
  const [left, top, right, bottom] = box;
  const name = data.labels?.[label] ?? label ?? "";
  const text = [name, typeof score === "number" ? score.toFixed(2) : ""].filter((part) => part !== "").join(" ");
  const percent = (value, all) => `${((100 * value) / all).toFixed(2)}%`;
  return h(
    "span",
    {
      class: top / height < 0.12 ? "box low" : "box",
      vars: { line: colourOf(String(name || "box"), "label") },
      style: {
        left: percent(left, width),
        top: percent(top, height),
        width: percent(right - left, width),
        height: percent(bottom - top, height),
      },
    },
    text && h("b", {}, text.slice(0, 60)),
  );
}

/** A mask in the colours of its classes; class 0 is left clear. */
function mask(part, labels) {
  const canvas = h("canvas", { class: "mask", "aria-hidden": "true" });
  const image = new Image();
  image.addEventListener("load", () => {
    const { naturalWidth: width, naturalHeight: height } = image;
    if (!width || width * height > MAX_MASK_PIXELS) return;
    Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, width, height);
    const colours = new Map();
    for (let at = 0; at < pixels.data.length; at += 4) {
      const number = pixels.data[at];
      if (!colours.has(number))
        colours.set(number, number ? rgb(colourOf(String(labels[number] ?? number), "label")) : null);
      const colour = colours.get(number);
      if (colour) pixels.data.set([...colour, 130], at);
      else pixels.data[at + 3] = 0;
    }
    context.putImageData(pixels, 0, 0);
  });
  image.src = blobAddress(part);
  return canvas;
}

function rgb(hex) {
  return [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
}

/** Show a picture as large as the window allows. */
function enlarge(medium, overlays) {
  const holder = h("div", { class: "picture" });
  const dialog = h(
    "dialog",
    { class: "lightbox", "aria-label": medium.caption || medium.name },
    holder,
    h(
      "footer",
      {},
      h("span", {}, [medium.caption || medium.name, `step ${whole(medium.step)}`].join(" · ")),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  showPicture(holder, medium, overlays);
  const image = holder.querySelector("img");
  const { width, height } = medium.data ?? {};
  if (width > 0 && height > 0) {
    const scale = Math.min((innerWidth * 0.88) / width, (innerHeight * 0.74) / height);
    Object.assign(image.style, { width: `${Math.round(width * scale)}px`, height: "auto" });
  }
  holder.querySelector(".frame").disabled = true;
  dialog.showModal();
}
