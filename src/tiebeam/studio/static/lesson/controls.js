// Radio buttons and parts of the lesson's figures. Nodes are made once and updated in place, so that the keyboard focus
// and the text cursor stay where they are.
import { freshId, h } from "../lib/dom.js";
import { changed, redraw, toy, WORDS } from "./toy.js";

export function choices(legend, names, current, pick) {
  const id = freshId("pick");
  return h("fieldset", null, h("legend", null, legend), h("div", { class: "choices" }, names.map(([value, text]) => h("label", { class: "choice" },
    h("input", { type: "radio", name: id, value, checked: value === current(), onchange: () => pick(value) }), h("span", null, text)))));
}

// The selected word is one for all figures.
export function wordChoices(legend) {
  const field = choices(legend, WORDS.map((word, i) => [i, word]), () => toy.word, (i) => { toy.word = i; changed(); });
  const inputs = field.querySelectorAll("input");
  redraw(() => { inputs[toy.word].checked = true; });
  return field;
}

// Show the parts whose steps include `step`, hide the others. parts: [[element, [steps]], ...]
export function stage(parts) {
  const element = h("div", { class: "panel stack" }, parts.map(([part]) => part));
  return {
    element,
    show(step) {
      for (const [part, steps] of parts) part.hidden = steps !== undefined && !steps.includes(step);
    },
  };
}
