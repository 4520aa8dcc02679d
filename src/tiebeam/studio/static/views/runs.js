// Runs view: live curves of training runs, tied and untied overlaid.
import { get, postStream } from "../lib/api.js";
import { curves } from "../lib/charts.js";
import { h, scroller, swatch } from "../lib/dom.js";
import { grouped, percent } from "../lib/numbers.js";

// Curves in order of display; a run without a metric is left out of its chart.
const CURVES = [
  ["val_bpb", "validation loss, bits per byte"],
  ["loss", "training loss, nats"],
  ["head_share", "LM head share of the embedding gradient"],
  ["tokens_per_second", "tokens per second"],
];

export async function show(main) {
  const { runs, comparisons } = await get("api/runs");
  if (!runs.length) {
    main.replaceChildren(h("h1", null, "Your runs"), h("div", { class: "panel empty play" }, h("h2", null, "No runs"), h("p", { class: "quiet" }, "Start the studio with run directories, or the directory above them:"), h("p", null, h("code", null, "tiebeam studio runs/tied runs/untied"))));
    return;
  }
  const kept = new Map(runs.map((run) => [run.id, { run, records: [], on: true }]));
  const charts = h("div", { class: "stack-wide" });
  const body = h("tbody");
  main.replaceChildren(h("h1", null, "Your runs"),
    h("section", { class: "panel play", "aria-label": "Runs" }, scroller("Runs", h("table", { class: "data" }, h("thead", null, h("tr", null, ["run", "pair", "state", "step", "loss", "val bpb", "LM head share"].map((name) => h("th", { scope: "col" }, name)))), body))),
    ...comparisons.filter((one) => one.sentences.length).map((one) => h("section", { class: "panel play", "aria-label": `Verdict of ${one.name}` }, h("h2", null, `Verdict of ${one.name}`), one.sentences.map((sentence) => h("p", null, sentence)))),
    h("div", { class: "play" }, charts), sampling(kept));

  let waiting = 0;
  const redraw = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); }); };
  const number = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
  const latest = (records, key) => records.findLast((record) => Number.isFinite(record[key]))?.[key];

  function draw() {
    body.replaceChildren(...[...kept.values()].map((one) => {
      const { run, records } = one;
      const box = h("input", { type: "checkbox", checked: one.on, "aria-label": `Draw ${run.name}`, onchange: (event) => { one.on = event.target.checked; redraw(); } });
      const share = latest(records, "head_share");
      return h("tr", null, h("th", { scope: "row" }, h("label", { class: "row" }, box, run.name)), h("td", null, run.tied === null ? "–" : [swatch(run.tied), run.tied ? "tied" : "untied"]),
        h("td", null, run.live ? "running" : "not running"), h("td", null, grouped(latest(records, "step") ?? 0)), h("td", null, number(latest(records, "loss"), 3)), h("td", null, number(latest(records, "val_bpb"), 4)), h("td", null, share === undefined ? "–" : percent(share)));
    }));
    const drawn = [...kept.values()].filter((one) => one.on);
    charts.replaceChildren(...CURVES.map(([key, label]) => {
      const series = drawn.map(({ run, records }) => ({ name: run.name, tone: run.tied === null ? "plain" : run.tied ? "tied" : "untied", points: records.filter((record) => Number.isFinite(record[key]) && Number.isFinite(record.step)).map((record) => [record.step, record[key]]) })).filter((line) => line.points.length);
      if (!series.length) return null;
      return h("section", { class: "panel", "aria-label": label }, h("h2", null, label), curves(series, { yLabel: label.split(",").at(-1).trim(), height: 280 }),
        h("ul", { class: "legend" }, series.map((line) => h("li", null, h("span", { class: `swatch ${line.tone}`, "aria-hidden": "true" }), `${line.name}: ${line.points.at(-1)[1].toPrecision(4)}`))));
    }).filter(Boolean));
  }
  draw();
  const source = new EventSource(`api/events?runs=${[...kept.keys()].slice(0, 200).join(",")}`);
  const start = (one) => { one.records = []; redraw(); };
  source.addEventListener("open", () => [...kept.values()].forEach(start)); // after a reconnect all records are sent again
  source.addEventListener("reset", (event) => start(kept.get(JSON.parse(event.data).run)));
  source.addEventListener("records", (event) => {
    const { run, records } = JSON.parse(event.data);
    kept.get(run).records.push(...records);
    redraw();
  });
  addEventListener("pagehide", () => source.close());
}

// Sample every finished run with the same prompt: a run directory is a model.
function sampling(kept) {
  const models = [...kept.values()].map((one) => one.run).filter((run) => run.model);
  if (!models.length) return null;
  const prompt = h("input", { id: "sample-prompt", type: "text", value: "The", autocomplete: "off" });
  const button = h("button", { type: "submit", class: "first" }, "Sample all");
  const outputs = new Map(models.map((run) => [run.id, h("p", { class: "said small", role: "status" })]));
  const form = h("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    for (const run of models) {
      const out = outputs.get(run.id);
      out.replaceChildren(h("span", { class: "prompt" }, prompt.value));
      try {
        await postStream("api/generate", { model: run.id, prompt: prompt.value, new: 48, temperature: 0.8, seed: 1, top: 1 }, (name, data) => {
          if (name === "error") throw new Error(data.error);
          if (data.text) out.append(data.text);
        });
      } catch (error) {
        out.replaceChildren(h("span", { class: "error" }, error.message));
      }
    }
    button.disabled = false;
  } }, h("label", { for: "sample-prompt" }, "Prompt"), h("span", { style: { flex: "1 1 12rem" } }, prompt), button);
  return h("section", { class: "panel stack play", "aria-labelledby": "samples" }, h("h2", { id: "samples" }, "Samples"), form,
    h("div", { class: "columns" }, models.map((run) => h("div", null, h("h3", { class: "small" }, run.tied === null ? null : swatch(run.tied), run.name), outputs.get(run.id)))));
}
