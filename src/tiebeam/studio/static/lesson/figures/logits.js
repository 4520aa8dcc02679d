// Logits as dot products with rows, softmax, and which matrix the rows belong to.
import { liveBars } from "../../lib/bars.js";
import { h, swatch } from "../../lib/dom.js";
import { grid } from "../../lib/grid.js";
import { dot, softmax } from "../../lib/linalg.js";
import { percent, signed } from "../../lib/numbers.js";
import { stage } from "../controls.js";
import { award } from "../progress.js";
import { changed, redraw, toy, WORDS } from "../toy.js";

export function logits() {
  let step = 0;
  const state = grid([toy.hidden], { caption: "h, the final hidden state (edit it)", name: "h", digits: 1, edit: (_, j, x) => { toy.hidden[j] = x; award("edit:h", 5); changed(); } });
  const title = h("strong");
  const bars = liveBars();
  const work = h("p", { class: "mono tiny" });
  const tied = h("p", { class: "note" }, swatch(true), "The rows used here are the rows of E. This LM head is tied: embedding and LM head are one V × D matrix.");
  const figure = stage([[state.element], [h("p", { class: "small" }, title)], [bars.element], [work], [tied, [2]]]);
  function draw() {
    const z = toy.E.map((row) => dot(row, toy.hidden));
    const p = softmax(z);
    const best = z.indexOf(Math.max(...z));
    state.update([toy.hidden], { scale: 1.5 });
    const terms = toy.E[best].map((x, j) => `${signed(x, 1)}·${signed(toy.hidden[j], 1)}`).join(" + ");
    title.textContent = step === 1 ? "softmax of the logits: probabilities" : "logits: h · each row";
    bars.update(
      WORDS.map((name, i) => ({ name, value: step === 1 ? p[i] : z[i], label: step === 1 ? percent(p[i]) : signed(z[i]), on: i === best })),
      step === 1 ? { low: 0, high: 1 } : { low: Math.min(-2, ...z), high: Math.max(2, ...z) });
    work.textContent = `${WORDS[best]}: ${terms} = ${signed(z[best])}`;
  }
  redraw(draw);
  return { element: figure.element, show: (next) => { step = next; figure.show(next); draw(); } };
}
