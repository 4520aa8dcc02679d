// Runs view: a dashboard of training runs. New runs appear and values update without a reload.
import { controls } from "../curves/curve_controls.js";
import { Chart, sample, View } from "../curves/curves.js";
import { duration } from "../curves/axes.js";
import { get, postStream } from "../lib/api.js";
import { h, scroller, swatch } from "../lib/dom.js";
import { grouped, percent } from "../lib/numbers.js";
import { colours, heldOut, series } from "../lib/run_series.js";

// Charts in order of display; a chart without values is not shown.
const CHARTS = [
  ["val_bpb", "Held-out loss", "bits per byte", { digits: 4 }],
  ["loss", "Training loss", "nats per token", { digits: 4, smooth: true }],
  ["head_share", "LM head share of the gradient", "share of the gradient norm", { smooth: true, text: percent, tick: (value) => `${Math.round(100 * value)}%` }],
  ["tokens_per_second", "Speed", "tokens per second", { smooth: true, text: (value) => grouped(Math.round(value)) }],
];
const COLUMNS = ["run", "state", "step", "loss", "held-out bits per byte", "tokens/s", "time left"];
const FILTER_FROM = 8; // runs in the table before there is a filter
const LOOK_AGAIN = 3000; // milliseconds between two looks for new runs
const MOST = 200; // runs that one stream follows

export async function show(main) {
  await stylesheet("views/runs.css");
  const first = await get("api/runs");
  const view = new View({ smoothing: 0.1 });
  const kept = new Map();
  const body = h("tbody");
  const search = h("input", { id: "filter-runs", type: "search", autocomplete: "off", oninput: () => choose() });
  const filter = h("div", { class: "row filter", hidden: true }, h("label", { for: "filter-runs" }, "Filter runs"), search);
  const verdicts = h("div", { class: "stack-wide play" });
  const charts = new Map(CHARTS.map(([key, title, label, options]) => {
    const chart = new Chart({ title, label, view, height: 280, ...options });
    return [key, { chart, panel: h("section", { class: "panel", "aria-label": title, hidden: true }, h("h2", null, title), chart.node) }];
  }));
  const empty = h("div", { class: "panel empty play" }, h("h2", null, "No runs"), h("p", { class: "quiet" }, "A run appears here when it starts. Start the studio with run directories, or the directory above them:"), h("p", null, h("code", null, "tiebeam studio runs/tied runs/untied")));
  const samples = sampling();
  const news = h("p", { class: "visually-hidden", role: "status" });
  const dashboard = h("div", { hidden: true }, verdicts,
    h("section", { class: "panel play", "aria-label": "Runs" }, filter, scroller("Runs", h("table", { class: "data runs" }, h("thead", null, h("tr", null, COLUMNS.map((name) => h("th", { scope: "col" }, name)))), body))),
    h("div", { class: "play" }, controls(view)), h("div", { class: "columns pairs play" }, [...charts.values()].map(({ panel }) => panel)), samples.node);
  main.replaceChildren(h("h1", null, "Your runs"), news, empty, dashboard);

  let waiting = 0;
  const redraw = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); }); };

  // Draw the runs that are ticked and that the filter lets through.
  function choose() {
    const wanted = search.value.trim().toLowerCase();
    for (const one of kept.values()) one.row.node.hidden = !one.run.name.toLowerCase().includes(wanted);
    view.set({ hidden: new Set([...kept.values()].filter((one) => one.row.node.hidden || !one.row.box.checked).map((one) => one.run.id)) });
  }

  function draw() {
    const shades = colours([...kept.values()].map((one) => one.run));
    for (const [key, { chart, panel }] of charts) {
      const found = series(key, kept, shades);
      panel.hidden = !found.some((one) => one.points.length);
      chart.set(found);
    }
    for (const one of kept.values()) one.row.update(one, shades.get(one.run.id));
  }

  // Take in a new list of runs and comparisons; returns whether a run is new.
  function take({ runs, comparisons }) {
    let added = 0;
    for (const run of runs) {
      const known = kept.get(run.id);
      if (known) {
        if (known.run.state !== run.state && run.state === "finished") news.textContent = `${run.name} finished`;
        known.run = run;
      } else {
        const one = { run, records: [], fresh: false, row: runRow(run, choose) };
        kept.set(run.id, one);
        body.append(one.row.node);
        added += 1;
      }
    }
    for (const id of [...kept.keys()].filter((id) => !runs.some((run) => run.id === id))) {
      kept.get(id).row.node.remove();
      kept.delete(id);
    }
    if (added && empty.hidden) news.textContent = added === 1 ? "1 new run" : `${added} new runs`;
    empty.hidden = kept.size > 0;
    dashboard.hidden = !kept.size;
    const told = JSON.stringify(comparisons);
    if (verdicts.dataset.told !== told) {
      verdicts.dataset.told = told;
      verdicts.replaceChildren(...comparisons.filter((one) => one.sentences.length || one.report).map(verdict));
    }
    samples.set(runs.filter((run) => run.model));
    filter.hidden = kept.size < FILTER_FROM && !search.value;
    if (added) choose();
    redraw();
    return added > 0;
  }

  let source = null;
  function follow() {
    source?.close();
    source = new EventSource(`api/events?runs=${[...kept.keys()].slice(0, MOST).join(",")}`);
    // After a reconnect all records are sent again; the old ones stay until the new ones are here.
    source.addEventListener("open", () => kept.forEach((one) => { one.fresh = true; }));
    source.addEventListener("reset", (event) => { const one = kept.get(JSON.parse(event.data).run); if (one) { one.records = []; redraw(); } });
    source.addEventListener("records", (event) => {
      const { run, records } = JSON.parse(event.data);
      const one = kept.get(run);
      if (!one) return;
      one.records = one.fresh ? records : [...one.records, ...records];
      one.fresh = false;
      redraw();
    });
  }

  async function look() {
    const started = performance.now();
    try {
      if (!document.hidden && take(await get("api/runs"))) follow();
    } catch {
      // the studio was stopped, or is busy; the next look tries again
    }
    setTimeout(look, Math.max(LOOK_AGAIN, 10 * (performance.now() - started)));
  }
  if (take(first)) follow();
  setTimeout(look, LOOK_AGAIN);
  addEventListener("pagehide", () => source?.close());
}

// A stylesheet that only this view needs.
function stylesheet(href) {
  return new Promise((resolve, reject) => {
    document.head.append(h("link", { rel: "stylesheet", href, onload: resolve, onerror: () => reject(new Error(`${href} could not be loaded`)) }));
  });
}

// What tiebeam compare found, in its own words.
function verdict(one) {
  return h("section", { class: "panel", "aria-label": `Verdict of ${one.name}` }, h("h2", null, `Verdict of ${one.name}`), one.sentences.map((sentence) => h("p", null, sentence)),
    one.report ? h("p", null, h("a", { href: `reports/${one.id}.html`, target: "_blank", rel: "noopener" }, "Open the report")) : null);
}

// A row of the table, whose cells are updated in place: the box keeps its focus.
function runRow(run, choose) {
  const [state, step, loss, val, speed, left] = COLUMNS.slice(1).map((name) => h("td", { "data-name": name }, h("span"))).map((cell) => cell.firstChild);
  const mark = h("span");
  const box = h("input", { type: "checkbox", checked: true, "aria-label": `Draw ${run.name}`, onchange: choose });
  const node = h("tr", null, h("th", { scope: "row" }, h("label", { class: "run-name" }, box, mark, h("span", null, run.name))), [state, step, loss, val, speed, left].map((span) => span.parentNode));
  const put = (target, text) => { if (target.textContent !== text) target.textContent = text; };
  const latest = (records, key) => records.findLast((record) => Number.isFinite(record[key]))?.[key];
  const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
  const update = ({ run, records }, colour) => {
    if (mark.dataset.colour !== colour) {
      mark.dataset.colour = colour;
      mark.replaceChildren(sample({ colour, dash: run.tied === false ? "7 4" : null }));
    }
    const { curve, others } = heldOut(records);
    const [done, seconds] = [latest(records, "done") ?? 0, latest(records, "seconds")];
    put(state, run.state);
    state.className = `pill ${run.state === "running" ? "running" : "quiet"}`;
    put(step, grouped(latest(records, "step") ?? 0));
    put(loss, fixed(latest(records, "loss"), 3));
    put(val, [fixed(curve.at(-1)?.val_bpb, 4), ...others.map((record) => `${fixed(record.val_bpb, 4)} on ${grouped(record.val_tokens ?? 0)} tokens`)].join("; "));
    put(speed, latest(records, "tokens_per_second") === undefined ? "–" : grouped(Math.round(latest(records, "tokens_per_second"))));
    put(left, run.state === "running" && done > 0 && done < 1 ? duration((seconds * (1 - done)) / done) : "–");
  };
  return { node, box, update };
}

// Sample every finished run with the same prompt: a run directory is a model.
function sampling() {
  const outputs = new Map();
  const prompt = h("input", { id: "sample-prompt", type: "text", value: "The", autocomplete: "off" });
  const button = h("button", { type: "submit", class: "first" }, "Sample all");
  const columns = h("div", { class: "columns" });
  const form = h("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    for (const [id, { out }] of [...outputs]) {
      out.replaceChildren(h("span", { class: "prompt" }, prompt.value));
      try {
        await postStream("api/generate", { model: id, prompt: prompt.value, new: 48, temperature: 0.8, seed: 1, top: 1 }, (name, data) => {
          if (name === "error") throw new Error(data.error);
          if (data.text) out.append(data.text);
        });
      } catch (error) {
        out.replaceChildren(h("span", { class: "error" }, error.message));
      }
    }
    button.disabled = false;
  } }, h("label", { for: "sample-prompt" }, "Prompt"), h("span", { style: { flex: "1 1 12rem" } }, prompt), button);
  const node = h("section", { class: "panel stack play", "aria-labelledby": "samples", hidden: true }, h("h2", { id: "samples" }, "Samples"), form, columns);
  const set = (models) => {
    node.hidden = !models.length;
    for (const run of models) {
      if (outputs.has(run.id)) continue;
      const out = h("p", { class: "said small", role: "status" });
      outputs.set(run.id, { out });
      columns.append(h("div", null, h("h3", { class: "small" }, run.tied === null ? null : swatch(run.tied), run.name), out));
    }
  };
  return { node, set };
}
