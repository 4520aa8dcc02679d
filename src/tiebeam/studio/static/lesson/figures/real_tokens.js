// The direct path of real models on a few dozen tokens: slices that tiebeam.studio.real_tokens made, and the models of
// this studio when it runs.
import { get } from "../../lib/api.js";
import { liveBars } from "../../lib/bars.js";
import { freshId, h, scroller } from "../../lib/dom.js";
import { heatmap } from "../../lib/heatmap.js";
import { antisymmetricShare } from "../../lib/linalg.js";
import { percent, signed } from "../../lib/numbers.js";
import { choices } from "../controls.js";
import { checkList, properties } from "./explorer.js";

const live = document.documentElement.dataset.mode === "live";
const NORMS = [["raw", "without the final norm"], ["normed", "with the final norm"]];
const PAIRS = [["New", "York"], ["my", "lord"]]; // what the text beside the figure speaks of
const MOST_BARS = 8;

export function realTokens() {
  const element = h("div", { class: "panel stack" }, h("p", { class: "note", role: "status" }, "Loading …"));
  get("lesson/real_tokens.json").then((found) => element.replaceChildren(...viewer(found.slices, found.command)), (error) => {
    element.replaceChildren(h("p", { class: "error" }, `The slices could not be loaded: ${error.message}`));
  });
  return { element };
}

function viewer(slices, command) {
  let slice = slices[0];
  let norm = "raw";
  const about = h("p", { class: "small" });
  const map = h("div");
  const reading = reader();
  const checks = h("div", { class: "stack" });
  const show = () => {
    const Z = slice[norm] ?? slice.raw;
    const names = slice.tokens;
    about.replaceChildren(h("strong", null, slice.title), ` · ${slice.about}`);
    const table = heatmap(Z, { names, caption: "Direct-path logit of the column token after the row token", scale: 0.6 * Math.max(...Z.flat().map(Math.abs)), read: (i, j) => reading.show(Z, names, i, j) });
    map.replaceChildren(table.element);
    const [i, j] = PAIRS.map((pair) => pair.map((name) => names.indexOf(name))).find((pair) => !pair.includes(-1)) ?? [0, Math.min(1, names.length - 1)];
    table.choose(i, j);
    checks.replaceChildren(checkList(properties(Z, names).checks), h("p", { class: "note" }, `${percent(antisymmetricShare(Z))} of the energy of this slice is antisymmetric.`), numbers(Z, names));
  };
  const pick = choices("Model", slices.map((one, i) => [i, one.title]), () => 0, (i) => { slice = slices[i]; show(); });
  const definition = choices("The direct path", NORMS, () => norm, (value) => { norm = value; show(); });
  show();
  const own = live ? ownModel((found) => { slice = found; show(); }) : h("p", { class: "note" }, "In a running studio (", h("code", null, "tiebeam studio DIR"), ") your own models and your own text can be shown here.");
  return [h("div", { class: "columns" }, pick, definition), about, h("div", { class: "map-and-reading" }, map, reading.element), checks, own, h("details", { class: "small" }, h("summary", null, "How the slices were made"), h("p", null, "One command writes all of them: ", h("code", null, command)),
    h("dl", { class: "origins" }, slices.map((one) => h("div", null, h("dt", null, one.title), h("dd", null, h("code", null, one.origin))))))];
}

// What the chosen cell says: both directions, and the highest logits after the row's token.
function reader() {
  const pair = () => [h("dt"), h("dd")];
  const [there, back] = [pair(), pair()];
  const after = h("strong");
  const bars = liveBars();
  const element = h("div", { class: "reading stack" }, h("div", { role: "status" }, h("dl", { class: "pair" }, h("div", null, there), h("div", { class: "back" }, back))),
    h("p", { class: "small" }, after), bars.element, h("p", { class: "note" }, "Point at a cell, or focus the matrix and use the arrow keys."));
  function show(Z, names, i, j) {
    for (const [[name, value], [a, b]] of [[there, [i, j]], [back, [j, i]]]) {
      name.textContent = `${names[a]} → ${names[b]}`;
      value.textContent = signed(Z[a][b]);
    }
    after.textContent = `highest after “${names[i]}”, of these ${names.length} tokens`;
    const order = Z[i].map((x, k) => [x, k]).sort((a, b) => b[0] - a[0]).slice(0, MOST_BARS);
    bars.update(order.map(([value, k]) => ({ name: names[k], value, label: signed(value), on: k === j })), { low: Math.min(0, order.at(-1)[0]), high: Math.max(...Z[i], 0) });
  }
  return { element, show };
}

const numbers = (Z, names) => h("details", null, h("summary", null, "All numbers"), scroller("Numbers", h("table", { class: "data" },
  h("thead", null, h("tr", null, h("th", { scope: "col" }, "after"), names.map((name) => h("th", { scope: "col" }, name)))),
  h("tbody", null, Z.map((line, i) => h("tr", null, h("th", { scope: "row" }, names[i]), line.map((x) => h("td", null, signed(x, 1)))))))));

// A form that asks the studio for the direct path of one of its models, between the tokens of a text.
function ownModel(use) {
  const [modelId, textId] = [freshId("model"), freshId("words")];
  const models = h("select", { id: modelId });
  const text = h("input", { id: textId, type: "text", value: " New York City is the big town", maxlength: 200 });
  const status = h("p", { class: "note", role: "status" });
  get("api/models").then(({ models: found }) => {
    models.replaceChildren(...found.map((model) => h("option", { value: model.id }, model.name)));
    if (!found.length) form.replaceChildren(h("p", { class: "note" }, "Start the studio with a model (", h("code", null, "tiebeam studio ./my-model"), ") to see your own tokens here."));
  }, () => {});
  async function ask(event) {
    event.preventDefault();
    status.textContent = "Reading …";
    try {
      const query = new URLSearchParams({ text: text.value, k: "1" });
      const [raw, normed] = await Promise.all(["0", "1"].map((norm) => get(`api/models/${models.value}/direct?${query}&norm=${norm}`)));
      const tokens = raw.tokens.map((token) => token.text ?? `#${token.id}`);
      use({ title: models.selectedOptions[0].textContent, about: `${raw.tied ? "tied" : "untied"}, your text`, tokens, raw: raw.between, normed: normed.between });
      status.textContent = "";
    } catch (error) {
      status.textContent = error.message;
    }
  }
  const form = h("form", { class: "row own", onsubmit: ask }, h("div", { class: "field" }, h("label", { for: modelId }, "Your model"), models),
    h("div", { class: "field wide" }, h("label", { for: textId }, "Your text (at most 12 tokens)"), text), h("button", { type: "submit" }, "Show it"), status);
  return form;
}
