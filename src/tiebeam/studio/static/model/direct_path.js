// The direct path of a model between tokens, and its spectrum over the whole vocabulary.
import { get } from "../lib/api.js";
import { Chart } from "../curves/curves.js";
import { hbars } from "../lib/bars.js";
import { freshId, h, prose } from "../lib/dom.js";
import { grid } from "../lib/grid.js";
import { jobButton } from "../lib/job.js";
import { grouped, signed } from "../lib/numbers.js";
import { shownToken } from "../lib/tokens.js";

export function directPath(model) {
  const id = freshId("text");
  const input = h("input", { id, type: "text", value: "New York City", autocomplete: "off", spellcheck: "false" });
  const out = h("div", { class: "stack", role: "status" });
  const norm = normSwitch(() => ask());
  const ask = async () => {
    const text = input.value;
    const query = /^[\d\s,]+$/.test(text) ? `ids=${encodeURIComponent(text)}` : `text=${encodeURIComponent(text)}`;
    out.replaceChildren(h("p", { class: "quiet" }, "Reading the matrices …"));
    try {
      out.replaceChildren(...path(await get(`api/models/${model.id}/direct?${query}&k=6&norm=${norm.value()}`)));
    } catch (error) {
      out.replaceChildren(h("p", { class: "error" }, error.message));
    }
  };
  return h("section", { class: "panel stack", "aria-labelledby": "direct" }, h("h2", { id: "direct" }, "Direct path"),
    h("p", { class: "quiet small" }, prose("Logits of a model without layers: the dot product of a token’s embedding, through the final norm, with every row of the LM head. The same numbers as `tiebeam lens`.")),
    norm.element,
    h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); ask(); } }, h("label", { for: id }, "Text, or token ids"), h("span", { style: { flex: "1 1 12rem" } }, input), h("button", { type: "submit", class: "first" }, "Show")), out);
}

function path(direct) {
  const names = direct.tokens.slice(0, direct.between.length).map(shownToken);
  return [
    h("p", { class: "small" }, h("strong", null, "logit of the column token after the row token")),
    grid(direct.between, { rows: names, columns: names, label: "Direct-path logits", digits: 2 }).element,
    h("p", { class: "note" }, direct.tied ? (direct.norm ? "Tied: without the final norm this matrix would be symmetric." : "Tied: this matrix is symmetric, and its diagonal is never negative.") : "Untied: this matrix need not be symmetric."),
    ...direct.tokens.slice(0, 4).map((token) => h("div", null,
      h("h3", null, h("code", null, shownToken(token))),
      h("p", { class: "note" }, `Logit of the token after itself: ${signed(token.itself)}${token.top[0]?.id === token.id ? ", the highest of all tokens" : ""}.`),
      h("p", { class: "small" }, h("strong", null, "highest direct-path logits")),
      hbars(token.top.map((score) => ({ name: shownToken(score), value: score.score, label: signed(score.score) }))))),
  ];
}

// Whether the direct path includes the final norm. As in `tiebeam lens`, it does by default.
function normSwitch(changed) {
  let value = 1;
  const id = freshId("norm");
  const one = (text, given) => h("label", { class: "choice" }, h("input", { type: "radio", name: id, checked: given === value, onchange: () => { value = given; changed(); } }), h("span", null, text));
  return { element: h("fieldset", null, h("legend", { class: "visually-hidden" }, "Final norm"), h("div", { class: "choices" }, one("with the final norm", 1), one("without (--no-norm)", 0))), value: () => value };
}

const share = (x) => `${(100 * x).toFixed(1)}%`; // as `tiebeam lens` prints it

export function spectrum(model) {
  const norm = normSwitch(() => { if (work.started()) work.start(); });
  const work = jobButton("Compute the spectrum", () => `api/models/${model.id}/spectrum?norm=${norm.value()}`, (found) => {
    const chart = new Chart({ title: "Spectrum of the direct path", label: "singular value, logarithmic", axes: ["rank"], log: true, height: 280, text: (x) => x.toPrecision(4) });
    chart.set([{ key: "path", name: "direct path", colour: `var(--${found.tied ? "tied" : "untied"})`, points: found.values.map((y, i) => ({ rank: i + 1, y })) }]);
    const { antisymmetric, negative, symmetric, rank } = found.energy;
    return [
      chart.node,
      h("p", { class: "note" }, `Rank ${grouped(rank)}. ${share(symmetric)} of its energy is symmetric, ${share(antisymmetric)} antisymmetric; ${share(negative)} of the symmetric part’s energy is in negative eigenvalues. `,
        found.tied ? (found.norm ? "The norm rescales each row, so the path of this tied model is not symmetric." : "Tied: the path is E·Eᵀ, symmetric and positive semidefinite.") : "A tied model can represent neither."),
    ];
  });
  return h("section", { class: "panel stack", "aria-labelledby": "spectrum" }, h("h2", { id: "spectrum" }, "Spectrum"), h("p", { class: "quiet small" }, "Singular values of the direct path E·Wᵀ, and how much of it a tied model cannot represent. Reads both matrices once; the result is kept on disk."), norm.element, work.element);
}
