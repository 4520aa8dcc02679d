// Charts of report.html, drawn from the numbers in the page.
import { choice, controls, legend } from "./curve_controls.js";
import { Chart, el, View } from "./curves.js";

const data = JSON.parse(document.getElementById("data").textContent);
const place = (name) => document.querySelector(`[data-plot="${name}"]`);
const style = (name) => ({ key: name, name: data.variants[name].title, colour: data.variants[name].colour, dash: data.variants[name].dash });
const names = Object.keys(data.variants);

// The controls and the legend of a view, as one bar.
function bar(view, { items = names.map(style), ...options } = {}) {
  return el("div", { class: "plot-bar" }, controls(view, options), items.length > 1 ? legend(items, view) : null);
}

function figure({ heading, above, chart, caption }) {
  return el("figure", {}, heading ? el("h3", {}, heading) : null, above, chart.node, caption ? el("figcaption", {}, caption) : null);
}

const percent = { text: (v) => `${(100 * v).toFixed(1)}%`, tick: (v) => `${Math.round(100 * v)}%` };
const points = (rows, keys) => rows.map((row) => Object.fromEntries(keys.map((key, i) => [key, row[i]])));

// Held-out and training curves, a chart for each width; the runs of a variant with other seeds are thin.
function training() {
  const shapes = [...new Map(data.cells.map((cell) => [`${cell.width} ${cell.vocab}`, cell])).values()];
  const several = new Set(shapes.map((cell) => cell.vocab)).size > 1;
  const view = new View({ smoothing: 0.1 });
  const row = (title, label, key, smooth) => shapes.map((shape) => {
    const heading = `Width ${shape.width}${several ? `, ${shape.vocab.toLocaleString("en")} tokens` : ""}`;
    const chart = new Chart({ title: `${title}, ${heading.toLowerCase()}`, label, view, smooth, height: 250 });
    const cells = data.cells.filter((cell) => cell.width === shape.width && cell.vocab === shape.vocab);
    chart.set(cells.map((cell) => ({ ...style(cell.variant), name: data.variants[cell.variant].title + (data.seeds > 1 ? `, seed ${cell.seed}` : ""), thin: data.seeds > 1, points: points(cell[key], ["step", "seconds", "tokens", "y"]) })));
    return { heading, chart };
  });
  place("held-out").before(bar(view));
  place("held-out").append(...row("Held-out loss", "held-out bits per byte", "checks", false).map(figure));
  place("training").append(...row("Training loss", "training loss, nats per token", "curve", true).map(figure));
}

// The gap to the baseline with its interval, the gap while training, and loss against size.
function ladder() {
  const base = data.variants[data.baseline].title;
  const label = (name) => `${name} minus ${base}, bits per byte`;
  const plain = { log: false, smoothing: false, late: false };

  // One other variant: both questions in one chart. Several: one question at a time.
  const gap = new View({ axis: "width" });
  const questions = [["steps", "at equal steps", null], ["time", "at equal time", "5 4"]];
  const one = data.gaps_of.length === 1;
  const chart = new Chart({ title: "Gap by width", label: label(one ? data.variants[data.gaps_of[0]].title : "variant"), view: gap, axes: ["width", "share"], zero: true, height: 300 });
  const items = one ? questions.map(([question, words, dash]) => ({ ...style(data.gaps_of[0]), key: question, name: words, dash, of: data.gaps_of[0], question })) : data.gaps_of.map((name) => ({ ...style(name), of: name }));
  const ask = (question) => chart.set(items.map((item) => ({ ...item, points: data.gaps.filter((g) => g.variant === item.of && g[item.question ?? question]).map((g) => {
    const [y, low, high] = g[item.question ?? question];
    return { width: g.width, share: g.share, y, low, high };
  }) })));
  ask("steps");
  const above = bar(gap, { ...plain, axes: ["width", "share"], items, label: "Gap by width" });
  if (!one) above.prepend(choice("At", questions.map(([question, words]) => [question, words.replace("at ", "")]), "steps", ask));
  const first = { heading: "Gap by width", above, chart, caption: `Above 0 ${base} is better. Bars are 95% intervals: one that crosses 0 shows no clear difference at that width.` };

  const during = new View({});
  const lines = data.gaps_while_training.map((one, i) => ({ key: String(i), name: one.name, colour: shade(style(data.headline).colour, i, data.gaps_while_training.length), dash: [null, "7 4", "2 4"][i % 3], points: points(one.points, ["step", "y"]) }));
  const falling = new Chart({ title: "Gap while training", label: label(data.variants[data.headline]?.title ?? ""), view: during, axes: ["step"], zero: true, height: 300 });
  falling.set(lines);
  const second = { heading: "Gap while training, at equal steps", above: bar(during, { ...plain, late: true, axes: ["step"], items: lines, label: "Gap while training" }), chart: falling, caption: data.seeds > 1 ? "The difference at every check: the mean over seeds." : "The difference at every check." };

  const size = new View({ axis: "params" });
  const sizes = new Chart({ title: "Held-out loss by size", label: "held-out bits per byte at the end", view: size, axes: ["params", "bytes"], height: 300 });
  sizes.set(names.filter((name) => data.sizes[name]).map((name) => ({ ...style(name), points: data.sizes[name].map(([params, bytes, y, width]) => ({ params, bytes, y, note: `(width ${width})` })) })));
  const third = { heading: "Loss by size", above: bar(size, { ...plain, axes: ["params", "bytes"], label: "Loss by size" }), chart: sizes, caption: "Each point is a model of the ladder after all its steps. Lower left is better." };
  place("ladder").append(...[first, second, third].filter((one) => one.chart.series.some((line) => line.points.length)).map(figure));
}

// The i-th of so many colours of one hue.
const shade = (colour, i, many) => (i ? `color-mix(in oklab, ${colour} ${Math.round(100 - (60 * i) / (many - 1))}%, var(--ink))` : colour);

// Held-out loss against the learning rate, a chart for each rate that was swept.
function sweep() {
  place("sweep")?.append(...data.sweep.map((one) => {
    const chart = new Chart({ title: `Learning rate, ${one.name}`, label: "held-out bits per byte after the sweep's steps", axes: ["rate"], log: false, height: 240 });
    chart.set(one.widths.map(({ width, points: rows }, i) => ({ key: String(i), name: `width ${width}`, colour: shade(style(one.variant).colour, i, one.widths.length), dash: [null, "7 4", "2 4"][i % 3], points: points(rows, ["rate", "y"]) })));
    return figure({ heading: one.name, above: one.widths.length > 1 ? legend(chart.series, chart.view) : null, chart });
  }));
}

// What the vocabulary matrices of the widest models look like.
function matrices() {
  const view = new View({ smoothing: 0 });
  const one = (options, series) => { const chart = new Chart({ view, height: 260, log: false, ...options }); chart.set(series); return chart; };
  const found = [];
  const gradient = data.matrices.gradient.filter((run) => run.points.length);
  if (gradient.length) found.push({ chart: one({ title: "LM head share of the gradient", label: "LM head share of the gradient norm", axes: ["step"], ...percent }, gradient.map((run) => ({ ...style(run.variant), key: `${run.variant} embed`, points: points(run.points, ["step", "y"]) }))), caption: "The norm of the LM head's part of the gradient over the sum of both norms." });
  const line = (run) => ({ ...style(run.variant), key: `${run.variant} ${run.matrix}`, name: run.name, dash: run.matrix === "head" ? "6 4" : null });
  found.push({ chart: one({ title: "Spectrum", label: "cumulative squared singular values", axes: ["rank"], ...percent }, data.matrices.spectrum.map((run) => ({ ...line(run), points: run.values.map((y, i) => ({ rank: i + 1, y })) }))), caption: "How much of each matrix its leading directions hold." });
  found.push({ chart: one({ title: "Row norms", label: "mean row norm", axes: ["count"], log: true, digits: 3 }, data.matrices.norms.map((run) => ({ ...line(run), points: points(run.points, ["count", "y"]) }))), caption: "Row norms by how often the token occurs in the training text." });
  const items = [...new Map(data.matrices.spectrum.map((run) => [`${run.variant} ${run.matrix}`, line(run)])).values()];
  place("matrices").before(legend(items, view));
  place("matrices").append(...found.map(figure));
}

training();
ladder();
sweep();
matrices();
document.documentElement.dataset.ready = "true";
