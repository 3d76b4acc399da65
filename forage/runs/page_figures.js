"use strict";
// Figures: curves of one run or two over each other.
const SVG = "http://www.w3.org/2000/svg";
// Drawn at once; the other curves are folded away.
const FIRST = /^(reward |held-out |entropy$|kl$|grad_norm$|mismatch_kl$|likelihood_gain$|episodes: (searches|distinct_queries|sampled_tokens|well_formed)$|flat groups)/;
const GROUPS = [["Rewards", /^(reward|held-out) /], ["Behaviour", /^(episodes: |flat groups)/], ["Health", /./]];
// From 0 to 1 by their nature, so drawn on that scale: over its whole height a rise of .004 looks like a triumph.
const RATE = /^(reward (?!overall as trained$)|held-out |episodes: (well_formed|distinct_queries)$|flat groups)/;
const SAID = "Rewards and shares of episodes are drawn from 0 to 1, all else from its lowest to its highest value. Each "
  + "training step plays other questions, so its rewards also move with how hard those are; held-out curves are of the "
  + "same questions throughout. A group is the episodes of one question; it is flat if all earned the same.";

// Every text from the run goes into the page as textContent, so that it can't become markup.
function make(tag, text = "", props = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, props);
}

function drawn(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function number(value) {
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

function ends(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

function figure(name, caption, svg) {
  const box = make("figure"), title = make("figcaption"), said = make("span", caption);
  title.append(make("b", name), said);
  box.append(title, svg);
  return { box, said };
}

// lines: for each run its points [step, value]; a run without this figure has none.
function curve(name, lines) {
  const points = lines.flat(), [left, right] = ends(points.map((p) => p[0]));
  const [low, high] = RATE.test(name) ? [0, 1] : ends(points.map((p) => p[1]));
  const across = (x) => 4 + 252 * (x - left) / (right - left || 1);
  const up = (y) => (high > low ? 86 - 82 * (y - low) / (high - low) : 45);
  const svg = drawn("svg", { viewBox: "0 0 260 90", preserveAspectRatio: "none" });
  lines.forEach((line, run) => {
    const style = run ? "second" : "first";
    if (line.length === 1) svg.append(drawn("circle", { class: style, r: 3, cx: across(line[0][0]), cy: up(line[0][1]) }));
    else svg.append(drawn("polyline", { class: style, points: line.map(([x, y]) => `${across(x)},${up(y)}`).join(" ") }));
  });
  const known = lines.filter((line) => line.length);
  const rises = known.map((line) => `${number(line[0][1])} → ${number(line.at(-1)[1])}`).join("; ");
  const range = `${rises} (scale ${number(low)} to ${number(high)})`, { box, said } = figure(name, range, svg);
  svg.onpointermove = (event) => {
    const edges = svg.getBoundingClientRect();
    const step = left + (right - left) * ((event.clientX - edges.left) / edges.width * 260 - 4) / 252;
    said.textContent = known.map((line) => {
      const near = line.reduce((best, p) => (Math.abs(p[0] - step) < Math.abs(best[0] - step) ? p : best));
      return `step ${near[0]}: ${number(near[1])}`;
    }).join("; ");
  };
  svg.onpointerleave = () => { said.textContent = range; };
  return box;
}

function folded(title, boxes, open) {
  const part = make("details", "", { open }), grid = make("div", "", { className: "figures" });
  grid.append(...boxes);
  part.append(make("summary", title), grid);
  return part;
}

function figures(runs) {
  const left = new Set(runs.flatMap((run) => Object.keys(run.curves)));
  const lines = (name) => runs.map((run) => run.curves[name] ?? []);
  const part = (title, belongs, open) => {
    const names = [...left].filter(belongs);
    names.forEach((name) => left.delete(name));
    return names.length ? [folded(title, names.map((name) => curve(name, lines(name))), open)] : [];
  };
  const still = (name) => lines(name).every((line) => line.length > 1 && line.every((point) => point[1] === line[0][1]));
  const unmoved = [...left].filter(still);
  unmoved.forEach((name) => left.delete(name));
  const parts = GROUPS.flatMap(([title, names]) => part(title, (name) => FIRST.test(name) && names.test(name), true));
  const more = part("More curves", () => true, false);
  unmoved.forEach((name) => left.add(name));
  return [make("div", SAID, { className: "quiet" }), ...parts, ...more, ...part("Curves that never moved", () => true, false)];
}

function table(caption, rows) {
  const box = make("table");
  box.append(make("caption", caption));
  for (const [name, value] of Object.entries(rows)) {
    const line = make("tr");
    line.append(make("th", name), make("td", number(value)));
    box.append(line);
  }
  return box;
}

function lastStep(runs) {
  return runs.map((run) => {
    const part = folded(runs.length > 1 ? `Last step of ${run.name}` : "Last step",
      Object.entries(run.tables).map(([caption, rows]) => table(caption, rows)), false);
    part.lastChild.className = "tables";
    return part;
  });
}
