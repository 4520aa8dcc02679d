// Bigram counts of an editable text, and the spectrum of its PMI matrix.
import { pmi } from "../../lib/bigrams.js";
import { hbars } from "../../lib/bars.js";
import { freshId, h } from "../../lib/dom.js";
import { grid } from "../../lib/grid.js";
import { antisymmetricShare, eigenvalues, negativeShare, symmetricPart } from "../../lib/linalg.js";
import { percent, signed } from "../../lib/numbers.js";
import { stage } from "../controls.js";
import { award } from "../progress.js";
import { language, redraw, setText } from "../toy.js";

export function bigrams() {
  let step = 0;
  const id = freshId("text");
  const error = h("p", { class: "error", role: "status" });
  const area = h("textarea", { id, rows: 3, spellcheck: "false", oninput: () => { error.textContent = setText(area.value); award("edit:text", 5); } });
  const map = h("div");
  const note = h("p", { class: "note" });
  const figure = stage([[h("div", { class: "field" }, h("label", { for: id }, "The text (change it)"), area, error)], [map], [note]]);
  function draw() {
    if (document.activeElement !== area) area.value = language.text;
    const { counts, vocabulary } = language;
    const pair = (i, j) => (vocabulary[i] === "New" && vocabulary[j] === "York") || (vocabulary[i] === "York" && vocabulary[j] === "New");
    map.replaceChildren(grid(counts, { small: true, rows: vocabulary, columns: vocabulary, digits: 0, blank: true, caption: "How often the column follows the row", on: (i, j) => step === 1 && pair(i, j) }).element);
    const one = (a, b) => counts[vocabulary.indexOf(a)]?.[vocabulary.indexOf(b)] ?? 0;
    note.textContent = step === 1
      ? `New → York: ${one("New", "York")} times. York → New: ${one("York", "New")} times. Of the energy of these counts, ${percent(antisymmetricShare(counts))} is antisymmetric: no symmetric matrix can represent it.`
      : `${language.words.length} words, ${vocabulary.length} different ones.`;
  }
  redraw(draw, "language");
  return { element: figure.element, show: (next) => { step = next; figure.show(next); draw(); } };
}

export function spectrum() {
  const element = h("div", { class: "panel stack narrow" });
  redraw(() => {
    const P = pmi(language.counts);
    const values = eigenvalues(symmetricPart(P));
    const largest = Math.max(...values.map(Math.abs));
    element.replaceChildren(h("p", { class: "small" }, h("strong", null, "Eigenvalues of the symmetric part of the text’s PMI matrix")),
      hbars(values.map((x, i) => ({ name: `${i + 1}`, value: x, label: signed(x) })), { low: -largest, high: largest }),
      h("p", { class: "note" }, `${percent(antisymmetricShare(P))} of the matrix’s energy is antisymmetric. Of the rest, ${percent(negativeShare(values))} is in negative eigenvalues. E·Eᵀ can represent neither, at any width.`));
  }, "language");
  return { element };
}
