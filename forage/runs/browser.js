"use strict";
// Every text from the run goes into the page as textContent, so that it can't become markup.
const SVG = "http://www.w3.org/2000/svg", ROW = 28;

function make(tag, text = "", props = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, props);
}

async function unpacked() {
  const packed = atob(JSON.parse(document.getElementById("data").textContent));
  const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function curve(name, lines) {
  const points = lines.flat(), xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 260 100");
  lines.forEach((line, index) => {
    const drawn = document.createElementNS(SVG, "polyline");
    if (index) drawn.setAttribute("class", "second");
    drawn.setAttribute("points", line.map(([x, y]) =>
      `${5 + 250 * (x - left) / (right - left || 1)},${95 - 90 * (y - low) / (high - low || 1)}`).join(" "));
    svg.append(drawn);
  });
  const figure = make("figure");
  figure.append(make("figcaption", `${name}: ${low.toPrecision(3)} to ${high.toPrecision(3)}`), svg);
  return figure;
}

function card(episode, data) {
  const box = make("section");
  box.append(make("h3", `step ${episode.step}, ${episode.id}, reward ${episode.reward.toFixed(3)}`));
  const facts = { Question: episode.question ?? `${episode.question_id}; the data folder is not here`,
    "Reference answer": episode.reference ?? "not here", Answer: episode.answer || "none",
    Rewards: Object.entries(episode.rewards).map(([k, v]) => `${k} ${v.toFixed(3)}`).join(", "),
    "Ended because": data.stops[episode.stop] ?? episode.stop, Faults: episode.faults.join(", ") || "none" };
  for (const [name, text] of Object.entries(facts)) box.append(make("b", name), make("div", text));
  for (const [turn, query, hits] of episode.searches) {
    box.append(make("b", `Search in turn ${turn + 1}: ${query}`));
    for (const [hit, relevant] of hits)
      box.append(make("div", relevant ? `${hit} (relevant)` : hit, { className: relevant ? "relevant" : "" }));
  }
  box.append(make("pre", episode.text));
  return box;
}

function start(data) {
  const bar = make("div", "", { id: "bar" }), list = make("div", "", { id: "list", tabIndex: 0 });
  const shown = make("div", "", { id: "shown" }), curves = make("div", "", { id: "curves" });
  const count = make("span"), space = make("div");
  const names = new Set(data.runs.flatMap((run) => Object.keys(run.curves)));
  for (const name of names) curves.append(curve(name, data.runs.map((run) => run.curves[name] ?? [])));
  const input = (id, type, placeholder) => make("input", "", { id, type, placeholder, step: "any" });
  const choice = (id, label, values) => {
    const select = make("select", "", { id });
    select.append(new Option(label, ""), ...values.map((value) => new Option(value, value)));
    return select;
  };
  const of = (key) => [...new Set(data.episodes.map((e) => String(e[key])))].filter(Boolean);
  const search = input("search", "search", "search text (/)"), least = input("least", "number", "least reward");
  const most = input("most", "number", "most reward"), stop = choice("stop", "any end", of("stop"));
  const type = choice("type", "any type", of("type")), step = choice("step", "any step", of("step"));
  const sort = choice("sort", "by step", ["best first", "worst first"]);
  const theme = make("button", "light / dark");
  const fields = [search, least, most, stop, type, step, sort];
  bar.append(...fields, theme, count);
  const left = data.left_out ? ` ${data.left_out} episodes of earlier steps are left out; --max-episodes changes that.` : "";
  document.body.append(make("h1", data.runs.map((run) => run.name).join(" and ")), curves, bar,
    make("p", `Keys: j, k choose; Enter opens; / searches; Esc closes.${left}`), list, shown);
  list.append(space);
  data.episodes.forEach((e) => { e.all = `${e.id} ${e.question ?? ""} ${e.answer} ${e.text}`.toLowerCase(); });
  let rows = [], chosen = 0;

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
    space.replaceChildren(...rows.slice(first, first + Math.ceil(list.clientHeight / ROW) + 10).map((e, offset) => {
      const index = first + offset;
      const row = make("div", `${e.step}  ${e.reward.toFixed(3)}  ${e.stop}  ${e.question ?? e.question_id}`,
        { className: index === chosen ? "row chosen" : "row", onclick: () => { choose(index); open(); } });
      row.style.top = `${index * ROW}px`;
      return row;
    }));
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
    const e = rows[chosen], box = card(e, data), others = make("select");
    others.append(new Option("the same question beside it", ""));
    data.episodes.forEach((o, i) => {
      if (o !== e && o.question_id === e.question_id) others.append(new Option(`step ${o.step}, ${o.id}`, i));
    });
    others.onchange = () => shown.replaceChildren(box, ...(others.value ? [card(data.episodes[others.value], data)] : []));
    box.prepend(others);
    shown.replaceChildren(box);
  }
  function filter() {
    const text = search.value.toLowerCase();
    rows = data.episodes.filter((e) => e.all.includes(text)
      && (least.value === "" || e.reward >= Number(least.value)) && (most.value === "" || e.reward <= Number(most.value))
      && (!stop.value || e.stop === stop.value) && (!type.value || e.type === type.value)
      && (!step.value || String(e.step) === step.value));
    if (sort.value) rows.sort((a, b) => (sort.value === "best first" ? b.reward - a.reward : a.reward - b.reward));
    space.style.height = `${rows.length * ROW}px`;
    count.textContent = `${rows.length} of ${data.episodes.length} episodes`;
    list.scrollTop = 0;
    choose(0);
  }
  fields.forEach((field) => { field.oninput = filter; });
  list.onscroll = draw;
  theme.onclick = () => {
    const root = document.documentElement.classList;
    const dark = root.contains("dark") || (!root.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    root.remove("dark", "light");
    root.add(dark ? "light" : "dark");
  };
  document.onkeydown = (event) => {
    if (event.key === "Escape") { shown.replaceChildren(); document.activeElement.blur(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/INPUT|SELECT|BUTTON/.test(document.activeElement.tagName)) return;
    const act = { j: () => choose(chosen + 1), k: () => choose(chosen - 1), Enter: open, "/": () => search.focus() }[event.key];
    if (act) { event.preventDefault(); act(); }
  };
  filter();
}

unpacked().then(start);
