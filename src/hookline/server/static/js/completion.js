// A completion with its reasoning and its answer marked, where they were recorded.

import { h } from "./dom.js";

/** @param {{completion: string, reasoning: string | null, answer: string | null, truncated: Record<string, number>}} sample */
export function completion(sample) {
  const marks = [
    ...mark(sample.completion, sample.reasoning, "reasoning", false),
    ...mark(sample.completion, sample.answer, "answer", true),
  ];
  const parts = [];
  let place = 0;
  for (const { begin, end, kind } of marks.sort((a, b) => a.begin - b.begin)) {
    if (begin < place) continue;
    parts.push(
      sample.completion.slice(place, begin),
      h("mark", { class: kind, title: kind }, sample.completion.slice(begin, end)),
    );
    place = end;
  }
  parts.push(sample.completion.slice(place));
  const cut = sample.truncated?.completion;
  return h("div", { class: "text" }, parts, cut ? h("span", { class: "muted" }, ` … ${cut} bytes in all`) : null);
}

/** Where a part stands in the whole: the answer last, the reasoning first. */
function mark(whole, part, kind, isLast) {
  if (!part) return [];
  const begin = isLast ? whole.lastIndexOf(part) : whole.indexOf(part);
  return begin < 0 ? [] : [{ begin, end: begin + part.length, kind }];
}
