// Prompts and completions as chats: messages with their roles, tool calls, folded reasoning, images, Markdown or raw text.
// Everything recorded becomes text nodes, or passes through `markdownFragment`.

import { ansiText, withoutAnsi } from "./ansi.js";
import { fill, h } from "./dom.js";
import { loadMarkdown, markdownFragment } from "./markdown.js";
import { blobAddress } from "./media_parts.js";

const REASONING = ["think", "thinking", "reasoning"];
const REASONING_KEYS = ["reasoning_content", "reasoning", "thinking"];
const KNOWN = new Set(["role", "content", "tool_calls", "name", "tool_call_id", ...REASONING_KEYS]);
const MAX_SHOWN = 200_000;

/**
 * The messages of a sample's prompt or completion; a text is one message.
 * @param {any} sample
 * @param {"prompt" | "completion"} part
 * @returns {any[]}
 */
export function messagesOf(sample, part) {
  const recorded = sample[`${part}_messages`];
  if (Array.isArray(recorded) && recorded.length) return recorded;
  return sample[part] === "" ? [] : [{ role: null, content: sample[part] }];
}

/** Load the libraries that some messages need. @param {any[]} messages */
export function loadFor(messages) {
  return loadMarkdown(messages.flatMap((message) => partsOf(message?.content).map((part) => part.text ?? "")));
}

/**
 * A list of messages, after `loadFor`.
 * @param {any[]} messages
 * @param {{run: string, isRaw: boolean}} options
 */
export function chat(messages, options) {
  const shown = messages.map((message) => messageElement(message, options));
  return h("div", { class: "chat", role: "group" }, shown);
}

function messageElement(message, options) {
  if (message === null || typeof message !== "object")
    return h("article", { class: "message" }, h("pre", { dir: "auto" }, String(message)));
  const role = message.role === null || message.role === undefined ? null : String(message.role);
  const body = h("div", { class: "message-body" });
  if (options.isRaw) fill(body, h("pre", { dir: "auto", class: "raw" }, role === null ? rawText(message.content) : json(message)));
  else fill(body, content(message, options));
  const name = message.name ? ` ${message.name}` : "";
  return h(
    "article",
    { class: "message", data: role === null ? {} : { role: role.slice(0, 40) } },
    role !== null && h("header", {}, h("b", {}, role), name && h("code", {}, name.slice(0, 200))),
    body,
  );
}

function rawText(value) {
  return typeof value === "string" ? value : json(value);
}

/** @returns {any[]} */
function content(message, options) {
  const reasoning = REASONING_KEYS.map((key) => message[key]).find((value) => typeof value === "string" && value);
  const others = Object.fromEntries(Object.entries(message).filter(([key]) => !KNOWN.has(key)));
  const isTool = message.role === "tool" || message.role === "function";
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
  return [
    reasoning && folded("Reasoning", text(reasoning), "reasoning"),
    partsOf(message.content).map((part) => partElement(part, options, isTool)),
    calls.map(toolCall),
    Object.keys(others).length > 0 && folded("Other fields", h("pre", {}, json(others)), "others"),
  ];
}

/** The parts of a content: texts, images, calls and results. */
function partsOf(value) {
  if (value === null || value === undefined || value === "") return [];
  if (typeof value === "string") return [{ type: "text", text: value }];
  if (!Array.isArray(value)) return [{ type: "json", value }];
  return value.map((part) => (typeof part === "string" ? { type: "text", text: part } : (part ?? { type: "json", value: part })));
}

function partElement(part, options, isTool) {
  if (typeof part.text === "string" && part.type !== "thinking") return isTool ? toolResult(part.text) : textParts(part.text);
  if (typeof part.thinking === "string") return folded("Reasoning", text(part.thinking), "reasoning");
  if (part.media && typeof part.media === "object") return picture(part.media, options.run);
  if (part.type === "tool_use" || part.type === "function_call") return toolCall(part);
  if (part.type === "tool_result") return toolResult(part.content);
  const address = part.image_url?.url ?? part.image_url ?? part.url;
  if (typeof address === "string" && /^https?:\/\//i.test(address))
    return h("p", { class: "muted" }, "image at ", h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, address.slice(0, 200)));
  return folded(String(part.type ?? "part").slice(0, 40), h("pre", {}, json(part.type === "json" ? part.value : part)), "others");
}

function picture(media, run) {
  if (typeof media.blob !== "string" || !/^[0-9a-f]{64}$/.test(media.blob))
    return h("p", { class: "muted" }, `The image was not recorded${media.problem ? `: ${media.problem}` : "."}`);
  const image = h("img", { src: blobAddress({ run, blob: media.blob }), alt: "image in the message", loading: "lazy" });
  image.addEventListener("error", () => image.replaceWith(h("p", { class: "muted" }, "The image is missing.")));
  return image;
}

function toolCall(call) {
  const inner = call?.function && typeof call.function === "object" ? call.function : (call ?? {});
  const given = inner.arguments ?? inner.input ?? call?.args ?? {};
  const shown = typeof given === "string" ? given : json(given);
  const short = typeof given === "string" ? given : JSON.stringify(given);
  return h(
    "details",
    { class: "tool-call" },
    h("summary", {}, h("b", {}, String(inner.name ?? "call").slice(0, 200)), h("code", {}, short.slice(0, 160))),
    h("pre", { dir: "auto" }, shown),
  );
}

/** The result of a tool: JSON is indented, terminal colours are shown. */
function toolResult(value) {
  let shown = value;
  if (typeof value === "string" && /^\s*[[{]/.test(value) && value.length < MAX_SHOWN) {
    try {
      shown = JSON.parse(value);
    } catch {
      shown = value;
    }
  }
  if (typeof shown !== "string") return h("pre", { dir: "auto" }, json(shown));
  return h("pre", { dir: "auto" }, ansiText(shown));
}

/** A text whose reasoning between tags is folded. @param {string} value */
function textParts(value) {
  const found = [];
  let rest = value;
  for (let place = reasoningIn(rest); place; place = reasoningIn(rest)) {
    found.push(place.begin > 0 && text(rest.slice(0, place.begin)), folded("Reasoning", text(place.text), "reasoning"));
    rest = rest.slice(place.end);
  }
  return [...found, rest && text(rest)];
}

/** A text without its reasoning between tags; all of it if there is nothing else. @param {string} value */
export function withoutReasoning(value) {
  let rest = value;
  for (let place = reasoningIn(rest); place; place = reasoningIn(rest)) rest = rest.slice(0, place.begin) + rest.slice(place.end);
  return rest.trim() ? rest : value;
}

/** The question: the last message of a user, or the prompt if it is not a chat. @param {any} sample @returns {string} */
export function questionOf(sample) {
  const question = messagesOf(sample, "prompt").findLast((message) => message?.role === "user");
  const texts = partsOf(question?.content).map((part) => part.text).filter((part) => typeof part === "string");
  return withoutAnsi(texts.join(" ") || sample.prompt);
}

/** The first reasoning between tags; to the end of the text if it was cut off before its closing tag. */
function reasoningIn(value) {
  const places = REASONING.map((tag) => ({ tag, begin: value.indexOf(`<${tag}>`) })).filter(({ begin }) => begin >= 0);
  if (!places.length) return null;
  const { tag, begin } = places.reduce((first, each) => (each.begin < first.begin ? each : first));
  const inside = begin + tag.length + 2;
  const close = value.indexOf(`</${tag}>`, inside);
  return { begin, text: value.slice(inside, close < 0 ? value.length : close).trim(), end: close < 0 ? value.length : close + tag.length + 3 };
}

/** @param {string} value */
function text(value) {
  if (value.includes("\x1b")) return h("pre", { class: "terminal", dir: "auto" }, ansiText(value));
  return h("div", { class: "prose", dir: "auto" }, markdownFragment(value));
}

function folded(title, inner, kind) {
  return h("details", { class: `folded ${kind}` }, h("summary", {}, title), inner);
}

function json(value) {
  return (JSON.stringify(value, null, 2) ?? "").slice(0, MAX_SHOWN);
}
