// Calculator view: vocabulary, width and non-embedding parameters -> what tying saves. The URL holds the state.
import { catalog } from "../lib/api.js";
import { price, shareWithin, SIZES } from "../lib/budget.js";
import { shareBars } from "../lib/bars.js";
import { modelTable, scatter } from "../lib/scatter.js";
import { freshId, h, media, scroller, tieWord } from "../lib/dom.js";
import { grouped, human, humanBytes, parseCount, percent } from "../lib/numbers.js";

// name, label, hint, minimum and maximum of the slider (typed values may be outside)
const SIZES_ASKED = [
  ["vocab", "Vocabulary", "tokens: rows of the matrix", 1_000, 512_000],
  ["dim", "Width", "the model's hidden size: columns", 64, 16_384],
  ["trunk", "Non-embedding parameters", "everything except embedding and LM head; empty if unknown", 1_000_000, 1_000_000_000_000],
];
const START = { vocab: "32000", dim: "2048", trunk: "968976384" }; // TinyLlama
const STEPS = 1000;

const toSlider = (n, low, high) => Math.round((STEPS * Math.log(Math.max(low, Math.min(high, Number(n))) / low)) / Math.log(high / low));

// Round value of a slider position: three significant digits, or a multiple of 64 for the width.
function fromSlider(place, low, high, name) {
  const raw = low * (high / low) ** (place / STEPS);
  if (name === "dim") return BigInt(Math.max(64, Math.round(raw / 64) * 64));
  const unit = 10 ** (Math.floor(Math.log10(raw)) - 2);
  return BigInt(Math.round(Math.round(raw / unit) * unit));
}

export function numbers(vocab, dim, trunk) {
  return price(parseCount(vocab), parseCount(dim), trunk.trim() ? parseCount(trunk) : null);
}

// The numbers in the URL, or the default ones.
function fromAddress() {
  const query = new URLSearchParams(location.search);
  const given = SIZES_ASKED.some(([name]) => query.has(name));
  return Object.fromEntries(SIZES_ASKED.map(([name]) => [name, given ? query.get(name) ?? "" : START[name]]));
}

const address = (state) => `?${new URLSearchParams(Object.entries(state).filter(([, text]) => text.trim()).map(([name, text]) => [name, text.trim().replaceAll(",", "")]))}`;

export async function show(main) {
  const { models, bands } = await catalog();
  const state = fromAddress();
  const preset = h("select", { id: "preset" },
    h("option", { value: "" }, "your own numbers"),
    [["tied", true], ["untied", false]].map(([word, tied]) => h("optgroup", { label: word },
      models.filter((model) => model.tied === tied && model.head_share !== null).sort((a, b) => a.total - b.total)
        .map((model) => h("option", { value: model.slug }, `${model.name} · ${human(model.total)}`)))));
  const fields = Object.fromEntries(SIZES_ASKED.map(([name, label, hint, low, high]) => {
    const id = freshId(name);
    const typed = h("input", { id, type: "text", inputmode: "text", autocomplete: "off", spellcheck: "false", "aria-describedby": `${id}-hint ${id}-error` });
    const slider = h("input", { type: "range", min: 0, max: STEPS, "aria-label": `${label}, by slider` });
    const error = h("p", { class: "error", id: `${id}-error` });
    typed.addEventListener("input", () => change(name, typed.value));
    slider.addEventListener("input", () => change(name, grouped(fromSlider(Number(slider.value), low, high, name)), typed));
    const element = h("div", { class: "field" }, h("label", { for: id }, label), typed, slider, h("span", { class: "hint", id: `${id}-hint` }, hint), error);
    return [name, { typed, slider, error, low, high, element }];
  }));
  const out = h("div", { class: "stack-wide", id: "numbers" });
  const field = h("div");
  const announcement = h("p", { class: "visually-hidden", role: "status" });

  main.replaceChildren(
    h("h1", null, "What does tying save?"),
    h("p", { class: "lead" }, "Exactly one matrix of vocabulary × width. How much that is depends on the rest of the model."),
    h("div", { class: "side-by-side play" },
      h("section", { class: "panel stack", "aria-label": "Sizes" },
        h("div", { class: "field" }, h("label", { for: "preset" }, "Start from a known model"), preset),
        SIZES_ASKED.map(([name]) => fields[name].element),
        h("p", { class: "note" }, "Write numbers as 50257, 50,257, 50k, 135M or 3.2B. The URL holds your numbers, so you can share it.")),
      h("div", null, out, announcement)),
    h("section", { class: "panel play", "aria-labelledby": "field-title" },
      h("h2", { id: "field-title" }, "Compared with known models"),
      h("p", { class: "quiet" }, "Models in which a separate LM head would be a large share are nearly always tied; models in which it is negligible are nearly always untied."),
      field,
      modelTable(models)));

  preset.addEventListener("change", () => {
    const model = models.find((one) => one.slug === preset.value);
    if (model) take(model);
  });
  function take(model) {
    Object.assign(state, { vocab: String(model.vocab), dim: String(model.dim), trunk: String(model.trunk) });
    if (location.search !== address(state)) history.pushState(null, "", address(state)); // Back undoes it
    draw(true);
  }
  window.addEventListener("popstate", () => {
    Object.assign(state, fromAddress());
    draw(true);
  });
  function change(name, text, typed) {
    state[name] = text;
    if (typed) typed.value = text;
    draw(false, name);
  }

  let timer = 0;
  function draw(refill, from) {
    const parsed = {};
    for (const [name, field] of Object.entries(fields)) {
      if (refill) field.typed.value = state[name].trim() && /^\d+$/.test(state[name].trim()) ? grouped(BigInt(state[name].trim())) : state[name];
      try {
        parsed[name] = name === "trunk" && !state[name].trim() ? null : parseCount(state[name]);
        if (parsed[name] !== null) {
          if (name !== "trunk" && parsed[name] < 1n) throw new RangeError(`the ${name === "dim" ? "width" : "vocabulary"} needs at least 1`);
          if (document.activeElement !== field.slider) field.slider.value = String(toSlider(parsed[name], field.low, field.high));
        }
        field.error.textContent = "";
        field.typed.removeAttribute("aria-invalid");
      } catch (problem) {
        field.error.textContent = problem.message;
        field.typed.setAttribute("aria-invalid", "true");
        parsed.wrong = true;
      }
    }
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (location.search !== address(state)) history.replaceState(null, "", address(state));
    }, from ? 250 : 0);
    if (parsed.wrong) return;
    const budget = price(parsed.vocab, parsed.dim, parsed.trunk);
    const model = models.find((one) => BigInt(one.vocab) === budget.vocab && BigInt(one.dim) === budget.dim && BigInt(one.trunk) === budget.trunk);
    preset.value = model?.slug ?? "";
    out.replaceChildren(...answer(budget, bands, model));
    const yours = budget.head_share === null ? null : { share: budget.head_share, total: Number(budget.untied_total) };
    const inChart = field.contains(document.activeElement);
    field.replaceChildren(scatter(models, { yours, pick: take, narrow: media("(max-width: 640px)").matches }));
    if (inChart) field.querySelector("svg").focus();
    announcement.textContent = `Tying saves ${human(budget.matrix)} parameters${budget.head_share === null ? "" : `, ${percent(budget.head_share)} of the untied model`}.`;
  }
  draw(true);
}

function answer(budget, bands, model) {
  const { matrix, trunk, head_share: share } = budget;
  const fact = (name, value, more) => [h("dt", null, name), h("dd", null, value, more ? h("small", null, more) : null)];
  const group = (...pairs) => h("dl", { class: "facts" }, pairs.map((pair) => h("div", null, fact(...pair))));
  const parts = [h("section", { class: "panel stack", "aria-labelledby": "saved" },
    h("h2", { id: "saved" }, model ? h("span", null, model.name, " is ", tieWord(model.tied)) : "In parameters"),
    group(["Tying saves", human(matrix), `${grouped(budget.vocab)} × ${grouped(budget.dim)} = ${grouped(matrix)}`],
      ...(trunk === null ? [] : [
        ["Tied", human(budget.tied_total), grouped(budget.tied_total)],
        ["Untied", human(budget.untied_total), grouped(budget.untied_total)],
        ["Share of the LM head", percent(share), "of the untied model"],
      ])),
    trunk === null ? h("p", { class: "quiet" }, "Enter the non-embedding parameters to see totals and the share.") : shareBars(trunk, matrix),
    share === null ? null : h("p", null, (bands.find((band) => 100 * share >= band.low && 100 * share < band.high) ?? bands.at(-1)).sentence))];
  const cell = (bytes) => h("td", null, humanBytes(bytes));
  const weighed = trunk === null ? [matrix, 2n * matrix] : [budget.tied_total, budget.untied_total];
  parts.push(h("div", { class: "columns uneven" },
    h("section", { class: "panel", "aria-labelledby": "bytes" },
      h("h2", { id: "bytes" }, "In bytes"),
      scroller("Bytes", h("table", { class: "data" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, ""), h("th", { scope: "col" }, tieWord(true)), h("th", { scope: "col" }, tieWord(false)), h("th", { scope: "col" }, "saved"))),
        h("tbody", null,
          [["fp32", 4n], ["bf16", 2n], ["int8", 1n]].map(([dtype, size]) => h("tr", null, h("th", { scope: "row" }, `${trunk === null ? "embedding + head" : "model"}, ${dtype}`), cell(size * weighed[0]), cell(size * weighed[1]), cell(size * matrix))),
          [["gradient of the pair", 4n], ["Adam state of the pair", 8n], ["fp32 master weights", 4n]].map(([name, size]) => h("tr", null, h("th", { scope: "row" }, name), cell(size * matrix), cell(2n * size * matrix), cell(size * matrix)))))),
      h("p", { class: "note" }, "int8 counts one byte per parameter, without quantization scales. Gradient, Adam’s two moments and the master weights of bf16 training are fp32.")),
    h("section", { class: "panel", "aria-labelledby": "sizes" },
      h("h2", { id: "sizes" }, "Same matrix in other model sizes"),
      h("table", { class: "data" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "a model of"), h("th", { scope: "col" }, "one matrix"), h("th", { scope: "col" }, "who ties"))),
        h("tbody", null, Object.entries(SIZES).map(([name, total]) => {
          const inside = shareWithin(matrix, total);
          const band = inside === null ? null : bands.find((one) => 100 * inside >= one.low && 100 * inside < one.high);
          return h("tr", null, h("th", { scope: "row" }, name), h("td", null, inside === null ? "does not fit" : percent(inside)), h("td", null, band ? `${band.tied} of ${band.models}` : "–"));
        }))),
      h("p", { class: "note" }, "The size includes both matrices. “Who ties” counts known models with a similar share of the LM head."))));
  return parts;
}
