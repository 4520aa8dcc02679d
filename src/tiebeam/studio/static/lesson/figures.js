// Figures of the lesson: figure() -> {element, show(frame)}.
import { curves, hbars } from "../lib/charts.js";
import { Fit, FORMS, floor, pmi, read, TEXT, unigram } from "../lib/bigrams.js";
import { freshId, h, media, scroller, swatch } from "../lib/dom.js";
import { grid } from "../lib/grid.js";
import { antisymmetricShare, dot, eigenvalues, map2, negativeShare, softmax, symmetricPart, timesT, zeros } from "../lib/linalg.js";
import { percent, signed } from "../lib/numbers.js";
import { award } from "./progress.js";
import { changed, EXPLORER_WORDS, toy, WORDS } from "./toy.js";

const oneHot = (i, n) => Array.from({ length: n }, (_, j) => (i === j ? 1 : 0));

function choices(legend, names, current, pick) {
  const id = freshId("pick");
  return h("fieldset", null, h("legend", null, legend), h("div", { class: "choices" }, names.map(([value, text]) => h("label", { class: "choice" },
    h("input", { type: "radio", name: id, value, checked: value === current(), onchange: () => pick(value) }), h("span", null, text)))));
}

// The selected word is global: every figure follows it.
function wordChoices(legend) {
  const field = choices(legend, WORDS.map((word, i) => [i, word]), () => toy.word, (i) => { toy.word = i; changed(); });
  toy.listeners.add(() => { field.querySelectorAll("input")[toy.word].checked = true; });
  return field;
}

function listening(element, draw) {
  const tell = () => (element.isConnected || !element.dataset.shown ? draw() : toy.listeners.delete(tell));
  toy.listeners.add(tell);
  draw();
  element.dataset.shown = "true";
  return element;
}

// 1. One-hot vectors and embedding lookup.
export function lookup() {
  let frame = 0;
  const element = h("div", { class: "panel stack" });
  const identity = grid(WORDS.map((_, i) => oneHot(i, 6)), { rows: WORDS, columns: WORDS, caption: "Every word as a one-hot row", digits: 0, small: true, scale: 2 });
  const hot = grid([oneHot(0, 6)], { caption: "one-hot", digits: 0, scale: 2 });
  const table = grid(toy.E, { rows: WORDS, caption: "E, one row per word (edit it)", name: "E", digits: 1, edit: (i, j, x) => { toy.E[i][j] = x; award("edit:E", 5); changed(); } });
  const row = grid([toy.E[0]], { caption: "result", digits: 1 });
  const sum = h("p", { class: "mono tiny" });
  const pick = wordChoices("The word");
  function draw() {
    const i = toy.word;
    const w = oneHot(i, 6);
    identity.update(WORDS.map((_, k) => oneHot(k, 6)), { rowOn: i });
    hot.update([w]);
    table.update(toy.E, { rowOn: i, scale: 1.5 });
    row.update([toy.E[i]], { scale: 1.5 });
    const terms = w.map((x, k) => `${x}·${signed(toy.E[k][0], 1)}`).join(" + ");
    sum.textContent = `first number: ${terms} = ${signed(dot(w, toy.E.map((r) => r[0])), 1)}`;
    const product = () => h("div", { class: "equation" }, table.element, h("span", { class: "op", "aria-hidden": "true" }, "→"), row.element);
    const parts = [
      () => [pick, identity.element],
      () => [pick, hot.element, product(), sum],
      () => [pick, product(), h("p", { class: "note" }, `E[${i}]: 3 numbers are read, nothing is multiplied.`)],
    ];
    element.replaceChildren(...parts[frame]());
  }
  return { element: listening(element, draw), show: (next) => { frame = next; draw(); } };
}

// 2. Logits as dot products with rows, softmax, and which matrix the rows belong to.
export function logits() {
  let frame = 0;
  const hiddenState = [0.5, 1.0, 0.4];
  const element = h("div", { class: "panel stack" });
  const state = grid([hiddenState], { caption: "h, the final hidden state (edit it)", name: "h", digits: 1, edit: (_, j, x) => { hiddenState[j] = x; award("edit:h", 5); draw(); } });
  const body = h("div", { class: "stack" });
  element.append(state.element, body);
  function draw() {
    const z = toy.E.map((row) => dot(row, hiddenState));
    const p = softmax(z);
    const best = z.indexOf(Math.max(...z));
    state.update([hiddenState], { scale: 1.5 });
    const work = toy.E[best].map((x, j) => `${signed(x, 1)}·${signed(hiddenState[j], 1)}`).join(" + ");
    const bars = frame === 1
      ? hbars(WORDS.map((name, i) => ({ name, value: p[i], label: percent(p[i]), on: i === best })), { low: 0, high: 1 })
      : hbars(WORDS.map((name, i) => ({ name, value: z[i], label: signed(z[i]), on: i === best })), { low: -2, high: 2 });
    body.replaceChildren(
      h("p", { class: "small" }, h("strong", null, frame === 1 ? "softmax of the logits: probabilities" : "logits: h · each row")), bars,
      h("p", { class: "mono tiny" }, `${WORDS[best]}: ${work} = ${signed(z[best])}`),
      frame === 2 ? h("p", { class: "note" }, swatch(true), "The rows used here are the rows of E. This LM head is tied: embedding and LM head are one V × D matrix.") : "");
  }
  return { element: listening(element, draw), show: (next) => { frame = next; draw(); } };
}

// 3. The residual stream is a sum, so the logits are a sum.
export function stream() {
  let frame = 0;
  const element = h("div", { class: "panel stack" });
  const add = { attention: [-0.6, 0.5, 0.3], MLP: [-0.5, 0.4, -0.1] };
  const on = { attention: true, MLP: true };
  const toggles = h("fieldset", null, h("legend", null, "What the layers add to the residual stream"), h("div", { class: "row" }, Object.keys(add).map((name) => h("label", { class: "choice" },
    h("input", { type: "checkbox", checked: true, onchange: (event) => { on[name] = event.target.checked; draw(); } }), h("span", null, `${name} [${add[name].map((x) => signed(x, 1)).join(", ")}]`)))));
  const body = h("div", { class: "stack" });
  const pick = wordChoices("The word at this position");
  element.append(pick, toggles, body);
  function draw() {
    toggles.hidden = frame === 1;
    const e = toy.E[toy.word];
    const used = Object.keys(add).filter((name) => frame === 0 && on[name]);
    const parts = [["embedding", e], ...used.map((name) => [name, add[name]])];
    const h_ = e.map((_, j) => parts.reduce((sum, [, v]) => sum + v[j], 0));
    const z = toy.E.map((row) => dot(row, h_));
    const rows = WORDS.map((word, i) => h("tr", null, h("th", { scope: "row" }, word), parts.map(([, v]) => h("td", null, signed(dot(toy.E[i], v)))), h("td", null, h("strong", null, signed(z[i])))));
    body.replaceChildren(
      scroller("Logits", h("table", { class: "data" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "next word"), parts.map(([name]) => h("th", { scope: "col" }, name === "embedding" ? "direct path" : name)), h("th", { scope: "col" }, "logit"))), h("tbody", null, rows))),
      h("p", { class: "note" }, frame === 1 ? `With nothing added, the score of each next word is row ${toy.word} of E·Eᵀ: the logits of “what follows ${WORDS[toy.word]}”.` : "Each column is that part’s dot product with the word’s row; the logit is their sum. (A real model has a norm before the head, which rescales the sum.)"));
  }
  return { element: listening(element, draw), show: (next) => { frame = next; draw(); } };
}

// 4. Bigram counts of an editable text.
export const language = { text: TEXT, ...read(TEXT), listeners: new Set() };
function setText(text) {
  const next = read(text);
  if (next.vocabulary.length < 2 || next.vocabulary.length > 24) return `The text has ${next.vocabulary.length} different words; 2 to 24 make a readable table.`;
  Object.assign(language, { text, ...next });
  for (const tell of language.listeners) tell();
  return "";
}

export function bigrams() {
  let frame = 0;
  const element = h("div", { class: "panel stack" });
  const id = freshId("text");
  const error = h("p", { class: "error", role: "status" });
  const area = h("textarea", { id, rows: 3, spellcheck: "false", oninput: () => { error.textContent = setText(area.value); award("edit:text", 5); } });
  area.value = language.text;
  const body = h("div", { class: "stack" });
  const editor = h("div", { class: "field" }, h("label", { for: id }, "The text (change it)"), area, error);
  function draw() {
    if (document.activeElement !== area) area.value = language.text;
    const { counts, vocabulary } = language;
    const map = grid(counts, { small: true, rows: vocabulary, columns: vocabulary, digits: 0, blank: true, caption: "How often the column follows the row",
      on: (i, j) => frame === 1 && ((vocabulary[i] === "New" && vocabulary[j] === "York") || (vocabulary[i] === "York" && vocabulary[j] === "New")) });
    map.update(counts);
    const one = (a, b) => counts[vocabulary.indexOf(a)]?.[vocabulary.indexOf(b)] ?? 0;
    body.replaceChildren(map.element, frame === 1
      ? h("p", { class: "note" }, `New → York: ${one("New", "York")} times. York → New: ${one("York", "New")} times. Of the energy of these counts, ${percent(antisymmetricShare(counts))} is antisymmetric: no symmetric matrix can represent it.`)
      : h("p", { class: "note" }, `${language.words.length} words, ${vocabulary.length} different ones.`));
    element.replaceChildren(...(frame === 0 ? [editor, body] : [body]));
  }
  language.listeners.add(draw);
  draw();
  return { element, show: (next) => { frame = next; draw(); } };
}

// 5. Symmetry explorer: edit E and watch E.E^T.
export function explorer() {
  const E = [[1.0, 0.4], [-0.6, 0.9], [0.3, -1.1], [0.8, 0.2]];
  let form = "EE";
  const W = [[-0.7, 1.0], [0.9, 0.2], [0.1, 0.8], [-0.4, -0.9]];
  const M = [[0.2, 1.1], [-0.9, 0.3]];
  const middle = { EE: (A) => A, EDE: (A) => map2(A, (x, _, j) => (j % 2 ? -x : x)), EME: (A) => A.map((row) => M[0].map((_, j) => dot(row, M.map((m) => m[j])))), EW: (A) => A };
  const edit = (target) => (i, j, x) => { target[i][j] = x; award("edit:explorer", 5); draw(); };
  const table = grid(E, { rows: EXPLORER_WORDS, caption: "E (edit it)", name: "E", digits: 1, edit: edit(E) });
  const second = grid(W, { rows: EXPLORER_WORDS, caption: "W (edit it)", name: "W", digits: 1, edit: edit(W) });
  const small = grid(M, { caption: "M (edit it)", name: "M", digits: 1, edit: edit(M) });
  const product = grid(zeros(4, 4), { rows: EXPLORER_WORDS, columns: EXPLORER_WORDS, caption: "the direct path" });
  const verdicts = h("div", { role: "status" });
  const inputs = h("div", { class: "equation" });
  const pick = choices("The direct path is", [["EE", "E·Eᵀ"], ["EDE", "E·diag(1,−1)·Eᵀ"], ["EME", "E·M·Eᵀ"], ["EW", "E·Wᵀ"]], () => form, (value) => { form = value; award(`explorer:${value}`, 2); draw(); });
  function draw() {
    const Z = timesT(middle[form](E), form === "EW" ? W : E);
    table.update(E, { scale: 1.5 });
    second.update(W, { scale: 1.5 });
    small.update(M, { scale: 1.5 });
    const extra = form === "EW" ? [second.element] : form === "EME" ? [small.element] : [];
    inputs.replaceChildren(table.element, ...extra, h("span", { class: "op", "aria-hidden": "true" }, "→"), product.element);
    product.update(Z, { on: (i, j) => i + j === 1 });
    const values = eigenvalues(symmetricPart(Z));
    const asymmetry = Math.max(...map2(Z, (x, i, j) => Math.abs(x - Z[j][i])).flat());
    const lowest = Math.min(...Z.map((row, i) => row[i]));
    const negative = values.filter((x) => x < -1e-9).length;
    verdicts.replaceChildren(
      h("ul", { class: "checks" },
        h("li", null, h("b", null, asymmetry < 1e-9 ? "Symmetric" : "Not symmetric"), `New → York ${signed(Z[0][1])}, York → New ${signed(Z[1][0])}; largest difference anywhere ${signed(asymmetry)}`),
        h("li", null, h("b", null, lowest >= -1e-9 ? "Diagonal is never negative" : "Negative diagonal"), `lowest logit of a word after itself: ${signed(lowest)}`),
        h("li", null, h("b", null, negative ? `${negative} negative eigenvalue${negative > 1 ? "s" : ""}` : "Positive semidefinite"), negative ? "some directions lower the logits of similar words" : "similar words always raise each other’s logits")),
      h("p", { class: "note" }, "Eigenvalues of the symmetric part:"),
      h("ul", { class: "eigen" }, values.map((x) => h("li", { class: x > 1e-9 ? "plus" : x < -1e-9 ? "minus" : "" }, (x > 1e-9 ? "+" : "") + signed(x)))));
  }
  draw();
  return { element: h("div", { class: "panel stack" }, pick, inputs, verdicts), show() {} };
}

// 6. Spectrum of the text's PMI matrix.
export function spectrum() {
  const element = h("div", { class: "panel stack" });
  function draw() {
    const P = pmi(language.counts);
    const values = eigenvalues(symmetricPart(P));
    const largest = Math.max(...values.map(Math.abs));
    element.replaceChildren(h("p", { class: "small" }, h("strong", null, "Eigenvalues of the symmetric part of the text’s PMI matrix")),
      hbars(values.map((x, i) => ({ name: `${i + 1}`, value: x, label: signed(x) })), { low: -largest, high: largest }),
      h("p", { class: "note" }, `${percent(antisymmetricShare(P))} of the matrix’s energy is antisymmetric. Of the rest, ${percent(negativeShare(values))} is in negative eigenvalues. E·Eᵀ can represent neither, at any width.`));
  }
  language.listeners.add(draw);
  draw();
  return { element, show() {} };
}

// 7. Every form trained on the text in the browser.
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
  language.listeners.add(() => { done.clear(); stop(); draw(); });
  draw();
  return { element, show() {} };
}
