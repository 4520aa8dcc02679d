// One-hot vectors and embedding lookup.
import { h } from "../../lib/dom.js";
import { grid } from "../../lib/grid.js";
import { dot } from "../../lib/linalg.js";
import { signed } from "../../lib/numbers.js";
import { stage, wordChoices } from "../controls.js";
import { award } from "../progress.js";
import { changed, redraw, toy, WORDS } from "../toy.js";

const oneHot = (i, n) => Array.from({ length: n }, (_, j) => (i === j ? 1 : 0));

export function lookup() {
  const identity = grid(WORDS.map((_, i) => oneHot(i, 6)), { rows: WORDS, columns: WORDS, caption: "Every word as a one-hot row", digits: 0, small: true, scale: 2 });
  const hot = grid([oneHot(0, 6)], { caption: "one-hot", digits: 0, scale: 2 });
  const table = grid(toy.E, { rows: WORDS, caption: "E, one row per word (edit it)", name: "E", digits: 1, edit: (i, j, x) => { toy.E[i][j] = x; award("edit:E", 5); changed(); } });
  const row = grid([toy.E[0]], { caption: "result", digits: 1 });
  const product = h("div", { class: "equation" }, table.element, h("span", { class: "op", "aria-hidden": "true" }, "→"), row.element);
  const sum = h("p", { class: "mono tiny" });
  const note = h("p", { class: "note" });
  const figure = stage([[wordChoices("The word")], [identity.element, [0]], [hot.element, [1]], [product, [1, 2]], [sum, [1]], [note, [2]]]);
  redraw(() => {
    const i = toy.word;
    const w = oneHot(i, 6);
    identity.update(WORDS.map((_, k) => oneHot(k, 6)), { rowOn: i });
    hot.update([w]);
    table.update(toy.E, { rowOn: i, scale: 1.5 });
    row.update([toy.E[i]], { scale: 1.5 });
    const terms = w.map((x, k) => `${x}·${signed(toy.E[k][0], 1)}`).join(" + ");
    sum.textContent = `first number: ${terms} = ${signed(dot(w, toy.E.map((r) => r[0])), 1)}`;
    note.textContent = `E[${i}]: 3 numbers are read, nothing is multiplied.`;
  });
  return figure;
}
