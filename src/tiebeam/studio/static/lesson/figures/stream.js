// The residual stream is a sum, so the logits are a sum.
import { h, scroller } from "../../lib/dom.js";
import { dot } from "../../lib/linalg.js";
import { signed } from "../../lib/numbers.js";
import { stage, wordChoices } from "../controls.js";
import { changed, redraw, toy, WORDS } from "../toy.js";

export function stream() {
  let step = 0;
  const layers = Object.entries(toy.layers);
  const boxes = layers.map(([, layer]) => h("input", { type: "checkbox", onchange: (event) => { layer.on = event.target.checked; changed(); } }));
  const toggles = h("fieldset", null, h("legend", null, "What the layers add to the residual stream"), h("div", { class: "row" },
    layers.map(([name, layer], i) => h("label", { class: "choice" }, boxes[i], h("span", null, `${name} [${layer.adds.map((x) => signed(x, 1)).join(", ")}]`)))));
  const head = h("tr");
  const body = h("tbody");
  const note = h("p", { class: "note" });
  const table = scroller("Logits", h("table", { class: "data tight" }, h("thead", null, head), body));
  const figure = stage([[wordChoices("The word at this position")], [toggles, [0]], [table], [note]]);
  function draw() {
    layers.forEach(([, layer], i) => { boxes[i].checked = layer.on; });
    const e = toy.E[toy.word];
    const parts = [["direct path", e], ...layers.filter(([, layer]) => step === 0 && layer.on).map(([name, layer]) => [name, layer.adds])];
    const hidden = e.map((_, j) => parts.reduce((sum, [, v]) => sum + v[j], 0));
    head.replaceChildren(...["next word", ...parts.map(([name]) => name), "logit"].map((name) => h("th", { scope: "col" }, name)));
    body.replaceChildren(...WORDS.map((word, i) => h("tr", null, h("th", { scope: "row" }, word), parts.map(([, v]) => h("td", null, signed(dot(toy.E[i], v)))), h("td", null, h("strong", null, signed(dot(toy.E[i], hidden)))))));
    note.textContent = step === 1
      ? `With nothing added, the score of each next word is row ${toy.word} of E·Eᵀ: the logits of “what follows ${WORDS[toy.word]}”.`
      : "Each column is that part’s dot product with the word’s row; the logit is their sum. (A real model has a norm before the head, which rescales the sum.)";
  }
  redraw(draw);
  return { element: figure.element, show: (next) => { step = next; figure.show(next); draw(); } };
}
