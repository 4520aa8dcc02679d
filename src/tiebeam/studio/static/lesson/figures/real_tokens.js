// The direct path of real models on a few dozen tokens: slices that tiebeam.studio.real_tokens made, and the models of
// this studio when it runs.
import { get } from "../../lib/api.js";
import { freshId, h, scroller } from "../../lib/dom.js";
import { grid } from "../../lib/grid.js";
import { antisymmetricShare } from "../../lib/linalg.js";
import { percent, signed } from "../../lib/numbers.js";
import { choices } from "../controls.js";
import { checkList, properties } from "./explorer.js";

const live = document.documentElement.dataset.mode === "live";
const NORMS = [["raw", "without the final norm"], ["normed", "with the final norm"]];

export function realTokens() {
  const body = h("div", { class: "stack" }, h("p", { class: "note" }, "Loading …"));
  const element = h("div", { class: "panel stack" }, body);
  get("lesson/real_tokens.json").then((found) => element.replaceChildren(...viewer(found.slices, found.command)), (error) => {
    body.replaceChildren(h("p", { class: "error" }, `The slices could not be loaded: ${error.message}`));
  });
  return { element };
}

function viewer(slices, command) {
  let slice = slices[0];
  let norm = "raw";
  const about = h("p", { class: "small" });
  const map = h("div");
  const tip = h("p", { class: "tip quiet", role: "status" });
  const checks = h("div");
  const show = () => {
    const Z = slice[norm] ?? slice.raw;
    const names = slice.tokens;
    about.replaceChildren(h("strong", null, slice.title), ` · ${slice.about}`);
    const table = grid(Z, { small: true, rows: names, columns: names, caption: "logit of the column token after the row token, direct path only", format: () => "", scale: 0.6 * Math.max(...Z.flat().map(Math.abs)) });
    // every cell says its numbers under the pointer; the table behind has them all for the keyboard
    table.element.addEventListener("pointerover", (event) => {
      const cell = event.target.closest("td");
      const line = cell?.parentElement;
      if (!line || !cell || cell.classList.contains("corner")) return;
      const [i, j] = [[...line.parentElement.children].indexOf(line), cell.cellIndex - 1];
      if (Z[i]?.[j] !== undefined) tip.textContent = `${names[i]} → ${names[j]}: ${signed(Z[i][j])} · reversed: ${signed(Z[j][i])}`;
    });
    map.replaceChildren(table.element);
    tip.textContent = "Point at a cell to read both directions.";
    const { checks: found } = properties(Z, names);
    checks.replaceChildren(checkList(found), h("p", { class: "note" }, `${percent(antisymmetricShare(Z))} of the energy of this slice is antisymmetric.`),
      h("details", null, h("summary", null, "All numbers"), scroller("Numbers", h("table", { class: "data" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "after"), names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, Z.map((line, i) => h("tr", null, h("th", { scope: "row" }, names[i]), line.map((x) => h("td", null, signed(x, 1))))))))));
  };
  const pick = choices("Model", slices.map((one, i) => [i, one.name]), () => 0, (i) => { slice = slices[i]; show(); });
  const definition = choices("The direct path", NORMS, () => norm, (value) => { norm = value; show(); });
  show();
  const own = live ? ownModel((found) => { slice = found; show(); }) : h("p", { class: "note" }, "In a running studio (", h("code", null, "tiebeam studio DIR"), ") your own models and your own text can be shown here.");
  return [h("div", { class: "columns" }, pick, definition), about, map, tip, checks, own, h("p", { class: "note" }, "Made by ", h("code", null, command))];
}

// A form that asks the studio for the direct path of one of its models, between the tokens of a text.
function ownModel(use) {
  const [modelId, textId] = [freshId("model"), freshId("words")];
  const models = h("select", { id: modelId });
  const text = h("input", { id: textId, type: "text", value: " New York City is the big town", maxlength: 200 });
  const status = h("p", { class: "note", role: "status" });
  get("api/models").then(({ models: found }) => models.replaceChildren(...found.map((model) => h("option", { value: model.id }, model.name))), () => {});
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
  return h("form", { class: "row", onsubmit: ask }, h("div", { class: "field" }, h("label", { for: modelId }, "Your model"), models),
    h("div", { class: "field" }, h("label", { for: textId }, "Your text (at most 12 tokens)"), text), h("button", { type: "submit" }, "Show it"), status);
}
