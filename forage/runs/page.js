"use strict";
// The page: figures, filters, a list that draws only the rows in view, and the episodes that are open.
const ROW = 28;
const KEYS = { j: "next episode", k: "episode before", Enter: "open it", b: "the same question beside it, another step",
  "/": "search", Esc: "leave a field, close", "?": "this list" };

async function unpacked() {
  const packed = atob(JSON.parse(document.getElementById("data").textContent)), bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at += 1) bytes[at] = packed.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function prepared(data) {
  for (const e of data.episodes) {
    const queries = e.searches.map((search) => search[1]).join(" ");
    e.all = `${e.id} ${e.question ?? ""} ${e.reference ?? ""} ${e.answer} ${queries} ${e.text}`.toLowerCase();
  }
  const most = (values) => values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  data.largest = { lead: most(data.episodes.map((e) => e.lead)),
    credit: most(data.episodes.flatMap((e) => (e.tokens?.credits ? [most(e.tokens.credits)] : []))) };
  return data;
}

function keyList() {
  const box = make("div", "", { id: "keys", hidden: true });
  for (const [key, what] of Object.entries(KEYS)) {
    const line = make("div");
    line.append(make("kbd", key), ` ${what}`);
    box.append(line);
  }
  return box;
}

function switchTheme() {
  const root = document.documentElement.classList;
  const dark = root.contains("dark") || (!root.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  root.remove("dark", "light");
  root.add(dark ? "light" : "dark");
}

function start(data) {
  const header = make("header"), bar = make("div", "", { id: "bar" }), keys = keyList();
  const list = make("div", "", { id: "list", tabIndex: 0 }), space = make("div"), shown = make("div", "", { id: "shown" });
  const count = make("span", "", { id: "count", className: "quiet" });
  const values = (key) => [...new Set(data.episodes.map((e) => String(e[key])))].filter(Boolean);
  const input = (id, type, placeholder) => make("input", "", { id, type, placeholder, ariaLabel: placeholder, step: "any" });
  const choice = (id, label, options) => {
    const select = make("select", "", { id, ariaLabel: label });
    select.append(new Option(label, ""), ...options.map((value) => (value.append ? value : new Option(value, value))));
    return select;
  };
  const search = input("search", "search", "search text ( / )"), least = input("least", "number", "least reward");
  const most = input("most", "number", "most reward"), stop = choice("stop", "any end", values("stop"));
  const type = choice("type", "any type", values("type")), step = choice("step", "any step",
    values("step").map((value) => new Option(`step ${value}`, value)));
  const run = choice("run", "both runs", data.runs.map((one, index) => new Option(one.name, index)));
  const sort = choice("sort", "latest first", ["best first", "worst first"]);
  const fields = [search, least, most, stop, type, step, ...(data.runs.length > 1 ? [run] : []), sort];
  const theme = make("button", "light / dark", { id: "theme", onclick: switchTheme });
  const help = make("button", "keys ( ? )", { id: "help", onclick: () => { keys.hidden = !keys.hidden; } });
  header.append(make("h1", data.runs.map((one) => one.name).join(" and ")), theme, help);
  const legend = data.runs.length < 2 ? [] : data.runs.map((one, index) =>
    make("span", `${one.name} `, { className: index ? "key second" : "key" }));
  bar.append(...fields, count);
  const left = data.left_out ? `${data.left_out} episodes of earlier steps are left out.` : "";
  const noted = data.runs.flatMap((one) => one.notes.map((note) =>
    make("div", data.runs.length > 1 ? `${one.name}:${note.includes("\n") ? "\n" : " "}${note}` : note,
      { className: note.includes("\n") ? "text" : "note" })));
  document.body.append(header, ...noted, ...legend, ...figures(data.runs), ...lastStep(data.runs), bar, make("div", left, { className: "quiet" }), list, shown, keys);
  list.append(space);
  let rows = [], chosen = 0, opened = null;

  function rowOf(e, index) {
    const line = make("div", "", { className: index === chosen ? "row chosen" : "row",
      onclick: () => { choose(index); open(); } });
    line.append(make("span", `step ${e.step}`), make("span", e.reward.toFixed(3)), make("span", e.stop, { className: "stop" }),
      make("span", e.question ?? e.question_id));
    line.style.top = `${index * ROW}px`;
    return line;
  }
  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5) & ~1; // even, so that stripes stay with their rows
    const last = Math.min(rows.length, first + Math.ceil(list.clientHeight / ROW) + 12);
    space.replaceChildren(...rows.slice(first, last).map((e, offset) => rowOf(e, first + offset)));
  }
  function choose(index) {
    chosen = Math.max(0, Math.min(rows.length - 1, index));
    const top = chosen * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
    draw();
  }
  function open() {
    if (!rows.length) return;
    const e = rows[chosen], others = data.episodes.filter((o) => o !== e && o.question_id === e.question_id);
    const beside = choice("beside", `the same question beside it (${others.length})`,
      others.map((o, index) => new Option(titleOf(o, data), index)));
    beside.onchange = () => {
      while (shown.children.length > 1) shown.lastChild.remove();
      if (beside.value) shown.append(card(others[beside.value], data));
    };
    opened = { e, others, beside };
    shown.replaceChildren(card(e, data, others.length ? [beside] : []));
  }
  function move(by) {
    choose(chosen + by);
    if (opened) open();
  }
  function besideIt() {
    if (!opened) open();
    if (!opened) return;
    const { e, others, beside } = opened;
    const far = others.findIndex((o) => o.step !== e.step || o.run !== e.run);
    if (far < 0) return;
    beside.value = String(far);
    beside.onchange();
  }
  function close() {
    if (!keys.hidden) keys.hidden = true;
    else if (/INPUT|SELECT/.test(document.activeElement.tagName)) document.activeElement.blur();
    else {
      shown.replaceChildren();
      opened = null;
    }
  }
  function filter() {
    const text = search.value.toLowerCase();
    rows = data.episodes.filter((e) => (least.value === "" || e.reward >= Number(least.value))
      && (most.value === "" || e.reward <= Number(most.value)) && (!stop.value || e.stop === stop.value)
      && (!type.value || e.type === type.value) && (!step.value || String(e.step) === step.value)
      && (!run.value || String(e.run) === run.value) && e.all.includes(text));
    if (sort.value) rows.sort((a, b) => (sort.value === "best first" ? b.reward - a.reward : a.reward - b.reward));
    space.style.height = `${rows.length * ROW}px`;
    count.textContent = `${rows.length} of ${data.episodes.length} episodes`;
    list.scrollTop = 0;
    choose(0);
  }
  fields.forEach((field) => { field.oninput = filter; });
  list.onscroll = draw;
  window.onresize = draw;
  const acts = { j: () => move(1), k: () => move(-1), b: besideIt, "/": () => search.focus(), "?": () => help.click(),
    Enter: () => { open(); shown.scrollIntoView({ block: "start" }); } };
  document.onkeydown = (event) => {
    const at = document.activeElement.tagName;
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && at === "INPUT") document.activeElement.blur();
    else if (!event.ctrlKey && !event.metaKey && !event.altKey && !/INPUT|SELECT/.test(at)
      && !(event.key === "Enter" && /BUTTON|SUMMARY/.test(at)) && Object.hasOwn(acts, event.key)) {
      event.preventDefault();
      acts[event.key]();
    }
  };
  filter();
}

unpacked().then((data) => {
  start(prepared(data));
});
