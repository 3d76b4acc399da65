"use strict";
// One episode: its facts, its searches, and its text, by tokens where the page has them.

// What a token the policy wrote is coloured by: [value from -1 to 1, what to say of it].
const COLOURS = {
  "who wrote it": (token) => [null, token.said],
  advantage: (token) => [token.gain, `${token.said}, ${token.credited ? "credit" : "reward less its group's mean"} ${number(token.raw)}`],
  "log-probability": (token) => [Math.max(-1, token.logprob / 5), token.said],
};

function coloured(span, value) {
  span.style.backgroundColor = value === null ? "color-mix(in srgb, var(--first) 22%, transparent)"
    : `color-mix(in srgb, var(--${value < 0 ? "bad" : "good"}) ${Math.round(Math.abs(value) * 60)}%, transparent)`;
}

// The prompt is the same in every episode, and longer than most; its heading is in page.css.
function promptOf(text) {
  const box = make("details");
  box.append(make("summary", "", { className: "prompt", ariaLabel: "prompt" }), text);
  return box;
}

// largest: the largest lead and the largest credit on the page, so that colours mean the same in every episode.
function tokenText(episode, texts, largest, by) {
  const box = make("div", "", { className: "text" }), { texts: ids, parts, logprobs, credits } = episode.tokens;
  let at = 0, own = 0;
  parts.forEach((length, part) => {
    if (part % 2 === 0) {
      const theirs = make("span", ids.slice(at, at + length).map((id) => texts[id]).join(""), { className: "theirs" });
      if (length) box.append(part ? theirs : promptOf(theirs));
      at += length;
      return;
    }
    for (let end = at + length; at < end; at += 1, own += 1) {
      const raw = credits ? credits[own] : episode.lead, most = credits ? largest.credit : largest.lead;
      const token = { logprob: logprobs[own], raw, credited: Boolean(credits), gain: raw / (most || 1),
        said: `log-probability ${number(logprobs[own])}, probability ${number(Math.exp(logprobs[own]))}` };
      const [value, title] = COLOURS[by](token), span = make("span", texts[ids[at]], { className: "mine", title });
      coloured(span, value);
      box.append(span);
    }
  });
  return box;
}

function facts(episode, data) {
  const list = make("dl", "", { className: "facts" });
  const rows = {
    Question: episode.question ?? `${episode.question_id} (the data folder of the run is not here to tell more)`,
    Rewards: Object.entries(episode.rewards).map(([name, value]) => `${name} ${number(value)}`).join(", ") || "none",
    Advantage: `${episode.lead < 0 ? "" : "+"}${number(episode.lead)} (reward less its group's mean)`,
    "Ended because": data.stops[episode.stop] ?? episode.stop,
  };
  if (episode.faults.length) rows.Faults = episode.faults.map((fault) => data.faults[fault] ?? fault).join("; ");
  for (const [name, text] of Object.entries(rows)) list.append(make("dt", name), make("dd", text));
  list.children[5].className = episode.lead < 0 ? "bad" : "good";
  return list;
}

// The passages that answer the question, and at which place among all that the policy saw they were found.
function wanted(episode, data) {
  const seen = [...new Set(episode.searches.flatMap((search) => search[2].map(([hit]) => hit)))];
  return episode.wanted.map((chunk) => {
    const place = seen.indexOf(chunk) + 1, text = data.passages[chunk];
    return make("div", `Wanted: ${chunk} (${place ? `number ${place} of what it saw` : "not found"})${text ? `: ${text}` : ""}`,
      { className: "wanted" });
  });
}

function answers(episode) {
  const box = make("div", "", { className: "answers" });
  for (const [name, text] of [["Answer", episode.answer || "none"], ["Reference", episode.reference ?? "not here"]]) {
    const side = make("div");
    side.append(make("b", name), text);
    box.append(side);
  }
  return box;
}

function searches(episode) {
  return episode.searches.flatMap(([turn, query, hits]) => {
    const found = make("div", "", { className: "hits" });
    found.append(...hits.map(([hit, relevant], place) =>
      make("span", `${place + 1}. ${hit}${relevant ? " ✓ relevant" : ""}`, { className: relevant ? "hit relevant" : "hit" })));
    return [make("div", `Search in turn ${turn + 1}: ${query}`, { className: "query" }), found];
  });
}

function titleOf(episode, data) {
  const run = data.runs.length > 1 ? `${data.runs[episode.run].name}, ` : "";
  return `${run}step ${episode.step}, ${episode.id}, reward ${number(episode.reward)}`;
}

function card(episode, data, tools = []) {
  const box = make("section"), top = make("div", "", { className: "top" });
  top.append(make("h2", titleOf(episode, data)), ...tools);
  box.append(top, facts(episode, data), answers(episode), ...wanted(episode, data), ...searches(episode));
  if (!episode.tokens) {
    const why = "tokens" in episode ? "Tokens are not shown: the tokenizer is not here, or its texts are not the transcript."
      : "Tokens are on the page for the latest episodes only.";
    box.append(make("div", why, { className: "quiet" }), make("div", episode.text, { className: "text" }));
    return box;
  }
  const by = make("select", "", { className: "by", ariaLabel: "colour of tokens" });
  by.append(...Object.keys(COLOURS).map((name) => new Option(`colour by ${name}`, name)));
  let text = tokenText(episode, data.texts, data.largest, by.value);
  by.onchange = () => {
    const next = tokenText(episode, data.texts, data.largest, by.value);
    text.replaceWith(next);
    text = next;
  };
  top.append(by);
  box.append(text);
  return box;
}
