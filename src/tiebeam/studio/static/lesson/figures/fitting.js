// Every form of the direct path, trained on the text in the browser.
import { curves } from "../../lib/charts.js";
import { Fit, FORMS, floor, unigram } from "../../lib/bigrams.js";
import { freshId, h, media, scroller, swatch } from "../../lib/dom.js";
import { grid } from "../../lib/grid.js";
import { choices } from "../controls.js";
import { award } from "../progress.js";
import { language, redraw } from "../toy.js";

const STEPS = 400;
export function fitting() {
  let form = "EE";
  let dim = 3;
  let running = 0;
  const done = new Map(); // form -> {loss, curve, probabilities}
  const still = media("(prefers-reduced-motion: reduce)");
  const dimId = freshId("dim");
  const dimOut = h("output", { for: dimId }, "3");
  const slider = h("input", { id: dimId, type: "range", min: 1, max: 8, value: 3, oninput: () => { dim = Number(slider.value); dimOut.textContent = String(dim); done.clear(); stop(); draw(); } });
  const all = h("button", { type: "button", class: "first", onclick: () => train(Object.keys(FORMS)) }, "Train all five");
  const one = h("button", { type: "button", onclick: () => train([form]) }, "Train this one");
  const status = h("p", { class: "note", role: "status" });
  const body = h("div", { class: "columns pairs" });
  const pick = choices("Show", Object.entries(FORMS).map(([key, { name }]) => [key, name]), () => form, (value) => { form = value; draw(); });
  const element = h("div", { class: "panel stack" }, pick, h("div", { class: "row" }, all, one), h("div", { class: "field short" }, h("label", { for: dimId }, "Width d: ", dimOut), slider), status, body);

  function stop() { running++; all.disabled = one.disabled = false; }

  function train(forms) {
    stop();
    const current = running;
    all.disabled = one.disabled = true;
    const fits = forms.map((name) => [name, new Fit(name, language.counts, dim)]);
    for (const [name, fit] of fits) done.set(name, { loss: fit.loss(), curve: [[0, fit.loss()]], p: fit.probabilities() });
    const slice = () => {
      if (current !== running) return;
      const until = performance.now() + 12;
      while (performance.now() < until && fits.some(([, fit]) => fit.step < STEPS)) {
        for (const [name, fit] of fits) {
          if (fit.step >= STEPS) continue;
          fit.advance(STEPS);
          if (fit.step % 10 === 0) {
            const mine = done.get(name);
            mine.loss = fit.loss();
            mine.curve.push([fit.step, mine.loss]);
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

  function draw() {
    const { counts, vocabulary } = language;
    const V = counts.length;
    const mine = done.get(form);
    const target = counts.map((row) => { const n = row.reduce((a, b) => a + b, 0); return row.map((x) => (n ? x / n : 0)); });
    const options = { small: true, rows: vocabulary, columns: vocabulary, blank: 0.045, scale: 1, format: (x) => String(Math.round(100 * x)) };
    const tone = (name) => (name === "EW" ? "untied" : "tied");
    const [least, most] = [floor(counts), unigram(counts)];
    const rows = Object.entries(FORMS).map(([name, info]) => {
      const found = done.get(name);
      return h("tr", null, h("th", { scope: "row" }, swatch(name !== "EW"), info.name, h("br"), h("span", { class: "quiet tiny" }, info.about)), h("td", null, String(info.params(V, dim))), h("td", null, found ? found.loss.toFixed(3) : "–"));
    });
    body.replaceChildren(
      grid(mine ? mine.p : target, { ...options, caption: mine ? `${FORMS[form].name}: next-word probability, %` : "Text: next-word probability, %" }).element,
      ...(mine ? [grid(target, { ...options, caption: "Text: next-word probability, %" }).element] : []),
      scroller("Losses", h("table", { class: "data" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "direct path"), h("th", { scope: "col" }, "parameters"), h("th", { scope: "col" }, "loss, nats"))), h("tbody", null, rows,
          h("tr", null, h("th", { scope: "row" }, "the counts themselves"), h("td", null, ""), h("td", null, least.toFixed(3))),
          h("tr", null, h("th", { scope: "row" }, "word frequencies only"), h("td", null, ""), h("td", null, most.toFixed(3)))))),
      ...(mine ? [curves([...done].map(([name, found]) => ({ name: FORMS[name].name, tone: tone(name), points: found.curve })), { width: media("(max-width: 640px)").matches ? 350 : 520, yLabel: "loss, nats", named: true, refs: [{ name: "the counts themselves", y: least }] })] : []));
  }
  redraw(() => { done.clear(); stop(); draw(); }, "language");
  return { element };
}
