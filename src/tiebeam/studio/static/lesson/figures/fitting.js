// Every form of the direct path, trained on the text in the browser.
import { Chart } from "../../curves/curves.js";
import { Fit, FORMS, floor, unigram } from "../../lib/bigrams.js";
import { freshId, h, media, scroller, swatch } from "../../lib/dom.js";
import { grid } from "../../lib/grid.js";
import { choices } from "../controls.js";
import { award } from "../progress.js";
import { language, redraw } from "../toy.js";

const STEPS = 400;
const EVERY = 10; // steps between two points of a curve
const names = Object.keys(FORMS);
// Tied forms are shades of one colour, as the runs of one kind are elsewhere.
const colour = (name) => (name === "EW" ? "var(--untied)" : `color-mix(in oklab, var(--tied) ${100 - 18 * names.indexOf(name)}%, var(--ink))`);

export function fitting() {
  let form = "EE";
  let dim = 3;
  let running = 0;
  let tables = null; // of the present text
  const done = new Map(); // form -> {loss, curve, p}
  const still = media("(prefers-reduced-motion: reduce)");
  const dimId = freshId("dim");
  const dimOut = h("output", { for: dimId }, "3");
  const slider = h("input", { id: dimId, type: "range", min: 1, max: 8, value: 3, oninput: () => { dim = Number(slider.value); dimOut.textContent = String(dim); forget(); } });
  const all = h("button", { type: "button", class: "first", onclick: () => train(names) }, "Train all five");
  const one = h("button", { type: "button", onclick: () => train([form]) }, "Train this one");
  const status = h("p", { class: "note", role: "status" });
  const losses = lossTable();
  const chart = new Chart({ title: "Loss while training", label: "loss, nats per word", axes: ["step"], log: false, digits: 3, named: true, height: 340 });
  const [fitted, text] = [h("div"), h("div")];
  const pick = choices("Show", Object.entries(FORMS).map(([key, { name }]) => [key, name]), () => form, (value) => { form = value; draw(); });
  const element = h("div", { class: "panel stack" }, pick, h("div", { class: "row" }, all, one), h("div", { class: "field short" }, h("label", { for: dimId }, "Width d: ", dimOut), slider), status,
    h("div", { class: "columns pairs" }, losses.element, chart.node, text, fitted));

  function stop() { running++; all.disabled = one.disabled = false; }
  function forget() { done.clear(); stop(); status.textContent = ""; draw(); }

  function train(forms) {
    stop();
    const current = running;
    all.disabled = one.disabled = true;
    const fits = forms.map((name) => [name, new Fit(name, language.counts, dim)]);
    for (const [name, fit] of fits) done.set(name, { loss: fit.loss(), curve: [{ step: 0, y: fit.loss() }], p: fit.probabilities() });
    const slice = () => {
      if (current !== running) return;
      const until = performance.now() + 12;
      while (performance.now() < until && fits.some(([, fit]) => fit.step < STEPS)) {
        for (const [name, fit] of fits) {
          if (fit.step >= STEPS) continue;
          fit.advance(STEPS);
          if (fit.step % EVERY === 0) {
            const mine = done.get(name);
            mine.loss = fit.loss();
            mine.curve.push({ step: fit.step, y: mine.loss });
            mine.p = fit.probabilities();
          }
        }
      }
      const finished = fits.every(([, fit]) => fit.step >= STEPS);
      if (finished || !still.matches) draw();
      status.textContent = finished ? `Trained for ${STEPS} steps.` : `Training: step ${Math.min(...fits.map(([, fit]) => fit.step))} of ${STEPS}`;
      if (finished) { all.disabled = one.disabled = false; award("fit", 10); } else requestAnimationFrame(slice);
    };
    requestAnimationFrame(slice);
  }

  // Tables for the words of the text; they are updated in place while a form is trained.
  function rebuild() {
    const { counts, vocabulary } = language;
    const target = counts.map((row) => { const n = row.reduce((a, b) => a + b, 0); return row.map((x) => (n ? x / n : 0)); });
    const options = { small: true, fit: true, rows: vocabulary, columns: vocabulary, blank: 0.045, scale: 1, format: (x) => String(Math.round(100 * x)) };
    tables = { fitted: grid(target, { ...options, caption: "The form: next-word probability, %" }) };
    text.replaceChildren(grid(target, { ...options, caption: "The text: next-word probability, %" }).element);
    fitted.replaceChildren(tables.fitted.element);
  }

  function draw() {
    const mine = done.get(form);
    const least = floor(language.counts);
    losses.update(language.counts.length, dim, done, least, unigram(language.counts));
    fitted.hidden = !mine;
    if (mine) tables.fitted.update(mine.p, { caption: `${FORMS[form].name}: next-word probability, %` });
    chart.node.hidden = !done.size;
    chart.set([...[...done].map(([name, found]) => ({ key: name, name: FORMS[name].name, colour: colour(name), dash: name === "EW" ? "7 4" : null, points: found.curve })),
      { key: "counts", name: "the counts", colour: "var(--strong-line)", dash: "2 4", thin: true, points: done.size ? [0, STEPS].map((step) => ({ step, y: least })) : [] }]);
  }
  redraw(() => { rebuild(); forget(); }, "language");
  return { element };
}

function lossTable() {
  const cells = new Map();
  const row = (key, ...name) => {
    cells.set(key, [h("td"), h("td")]);
    return h("tr", null, h("th", { scope: "row" }, ...name), cells.get(key));
  };
  const rows = [...Object.entries(FORMS).map(([key, { name, about }]) => row(key, swatch(key !== "EW"), name, h("br"), h("span", { class: "quiet tiny" }, about))), row("counts", "the counts themselves"), row("words", "word frequencies only")];
  const element = scroller("Losses", h("table", { class: "data" }, h("thead", null, h("tr", null, ["direct path", "parameters", "loss, nats"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, rows)));
  function update(V, dim, done, least, most) {
    for (const [key, [params, loss]] of cells) {
      params.textContent = FORMS[key] ? String(FORMS[key].params(V, dim)) : "";
      loss.textContent = { counts: least, words: most }[key]?.toFixed(3) ?? done.get(key)?.loss.toFixed(3) ?? "–";
    }
  }
  return { element, update };
}
