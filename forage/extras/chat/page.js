"use strict";
// Whatever a document or a model wrote goes into textContent, so that it stays text.
const form = document.querySelector("form");
const input = form.querySelector("input");
const button = form.querySelector("button");
const main = document.querySelector("main");
let asked = null; // what stops the question that is being answered

function put(where, kind, text, name = "div") {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = text;
  where.append(made);
  return made;
}

function list(where, passages) {
  for (const { figure, text } of passages) {
    const made = put(where, "", "", "details");
    const summary = put(made, "", `${figure} ${text.slice(0, 200)}`, "summary");
    made.addEventListener("toggle", () => { summary.textContent = made.open ? `${figure} ${text}` : `${figure} ${text.slice(0, 200)}`; });
  }
}

function show(where, turns, event) {
  if ("turn" in event) {
    turns[event.turn] ??= put(where, "turn", "");
    turns[event.turn].textContent = event.text;
    for (const why of event.refused ?? []) put(where, "warn", `refused: ${why}`);
  } else if ("search" in event) {
    put(where, "did", `searched for: ${event.search}`);
    list(where, event.passages);
    if (!event.passages.length) put(where, "warn", "nothing found");
  } else if ("tool" in event) {
    put(where, "did", event.tool);
    put(where, "", event.result);
  } else if ("answer" in event) {
    put(where, "answer", event.answer);
    if (event.passages.length) {
      put(where, "did", "share of the answer's words in a passage (even all of them don't make it right)");
      list(where, event.passages);
    }
    for (const note of event.notes) put(where, "warn", note);
  } else put(where, "warn", `no answer: ${event.no_answer}`);
}

async function ask(question, where) {
  const reply = await fetch("ask", { method: "POST", body: JSON.stringify({ question }), signal: asked.signal });
  if (!reply.ok) throw new Error((await reply.json()).detail);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  const turns = {};
  let waiting = "";
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const lines = (waiting + value).split("\n");
    waiting = lines.pop();
    for (const line of lines) show(where, turns, JSON.parse(line));
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (asked) return asked.abort();
  const where = document.createElement("article");
  put(where, "", input.value, "h2");
  main.prepend(where);
  asked = new AbortController();
  [button.textContent, input.value] = ["Stop", ""];
  input.required = false;
  try {
    await ask(where.firstChild.textContent, where);
  } catch (error) {
    put(where, "warn", error.name === "AbortError" ? "stopped" : `no answer: ${error.message}${error instanceof TypeError ? "; does chat.py still run?" : ""}`);
  }
  [asked, button.textContent, input.required] = [null, "Ask", true];
  where.classList.add("done");
});
