// Generate view: streamed text; for each token its probability, what every layer added to its logit, and the factors.
import { get, job, postStream } from "../lib/api.js";
import { hbars } from "../lib/bars.js";
import { freshId, h } from "../lib/dom.js";
import { humanBytes, percent, signed } from "../lib/numbers.js";
import { dataTable } from "../lib/table.js";
import { visible } from "../lib/visible.js";

const shown = (token) => (token.text ?? `#${token.id}`).replaceAll("\n", "⏎").replace(/^ | $/g, "␣");
const MOST_LAYERS = 16; // bars; further layers are joined

export async function show(main) {
  const { models } = await get("api/models");
  if (!models.length) {
    main.replaceChildren(h("h1", null, "Generate"), h("div", { class: "panel empty play" }, h("h2", null, "No models"), h("p", { class: "quiet" }, "Start the studio with a model:"), h("p", null, h("code", null, "tiebeam studio ./my-model"))));
    return;
  }
  const field = (label, input, hint) => { input.id = freshId("field"); return h("div", { class: "field" }, h("label", { for: input.id }, label), input, hint ? h("span", { class: "hint" }, hint) : null); };
  const model = h("select", null, models.map((one) => h("option", { value: one.id }, one.name)));
  const prompt = h("textarea", { rows: 3, spellcheck: "false" });
  prompt.value = "The capital of France is";
  const amount = h("input", { type: "number", min: 1, max: 512, value: "32" });
  const temperature = h("input", { type: "number", min: 0, max: 5, step: 0.1, value: "0" });
  const seed = h("input", { type: "number", min: 0, value: "1" });
  const output = h("div", { class: "said", "aria-label": "Generated text", role: "group" });
  const status = h("p", { class: "note", role: "status" });
  const held = h("p", { class: "note" });
  const behind = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Generate text, then select a token to see its probability and what made its logit."));
  const go = h("button", { type: "submit", class: "first" }, "Generate");
  const halt = h("button", { type: "button", disabled: true, onclick: () => stopper?.abort() }, "Stop");
  let stopper = null;
  let made = 0; // tokens
  main.replaceChildren(h("h1", null, "Generate"),
    h("div", { class: "side-by-side play" },
      h("form", { class: "panel stack", "aria-label": "Settings", onsubmit: (event) => { event.preventDefault(); run(); } },
        field("Model", model), field("Prompt", prompt), field("New tokens", amount), field("Temperature", temperature, "0 always takes the most likely token"), field("Seed", seed, "used above temperature 0"), h("div", { class: "row" }, go, halt), held),
      h("div", { class: "stack-wide" }, h("section", { class: "panel stack", "aria-labelledby": "text" }, h("h2", { id: "text" }, "Text"), output, status),
        h("section", { class: "panel stack", "aria-labelledby": "behind" }, h("h2", { id: "behind" }, "Why this token"), behind))));

  await tellMemory();

  // The weights are loaded while the prompt is typed.
  let loading = null; // {model, stop, done: whether it succeeded}
  function load() {
    if (loading?.model === model.value) return loading.done;
    loading?.stop.abort();
    const mine = (loading = { model: model.value, stop: new AbortController() });
    mine.done = job(`api/models/${model.value}/load`, ({ stage, done, total, seconds_left }) => {
      if (loading === mine && total) held.textContent = `${stage}: ${done} of ${total}${seconds_left === null ? "" : `, about ${Math.max(1, Math.round(seconds_left))} s left`}`;
    }, { method: "POST", signal: mine.stop.signal }).then(tellMemory, (error) => {
      if (loading !== mine) return;
      loading = null; // another try may succeed
      held.textContent = error.name === "AbortError" ? "Not loaded." : error.message;
    });
    return mine.done;
  }
  prompt.addEventListener("input", load);
  model.addEventListener("change", load);

  // Opening another model drops the weights of this one, unless --memory allows both.
  async function tellMemory() {
    const { loaded } = (await get("api/status")).memory;
    held.textContent = loaded.length ? `Weights in memory: ${loaded.map((one) => `${visible(one.name)} (${humanBytes(one.bytes)})`).join(", ")}.` : "No weights in memory yet.";
  }

  async function run() {
    stopper?.abort();
    stopper = new AbortController();
    const { signal } = stopper;
    signal.addEventListener("abort", () => { if (made === 0) loading?.stop.abort(); });
    go.disabled = true;
    halt.disabled = false;
    status.textContent = "Loading the model; the progress is below the settings.";
    output.replaceChildren(h("span", { class: "prompt" }, prompt.value));
    let began = 0; // when the first token was there: opening and reading the prompt are no generation
    made = 0;
    const body = { model: model.value, prompt: prompt.value, new: Number(amount.value), temperature: Number(temperature.value), ...(Number(temperature.value) > 0 ? { seed: Number(seed.value) } : {}) };
    try {
      await load();
      if (!signal.aborted) status.textContent = "Reading the prompt …";
      await postStream("api/generate", body, (name, data) => {
        if (name === "error") throw new Error(visible(data.error));
        if (data.prompt || data.done) return;
        made++;
        if (made === 1) began = performance.now();
        const button = h("button", { type: "button", "aria-pressed": "false", "aria-label": data.end ? "end of text" : `token ${made}: ${shown(data)}`, onclick: () => explain(button, data) }, data.end ? "∎" : data.text.replaceAll("\n", "⏎") || "·");
        output.append(button, data.text.replace(/[^\n]/g, "")); // a line break inside a button would not break the line
        explain(button, data);
        const rate = made > 1 ? `, ${((1000 * (made - 1)) / (performance.now() - began)).toFixed(1)} per second` : "";
        status.textContent = `${made} tokens${rate}`;
      }, signal);
      status.textContent += ending(made);
    } catch (error) {
      status.textContent = error.name === "AbortError" ? `Stopped after ${made} tokens.` : error.message;
    }
    go.disabled = false;
    halt.disabled = true;
    await tellMemory();
  }

  function explain(button, token) {
    for (const other of output.querySelectorAll("button[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    const chosen = token.top.find((one) => one.chosen);
    behind.replaceChildren(
      h("h3", null, "Probability of the next token"),
      hbars(token.top.map((one) => ({ name: shown(one), value: one.probability, label: percent(one.probability), on: one.chosen })), { low: 0, high: 1 }),
      h("h3", null, "What made this logit"),
      h("p", { class: "note" }, "The logit of ", h("code", null, shown(chosen)), ` is ${signed(chosen.logit)}. The residual stream is a sum, so the logit is one too: the direct path from the embedding, and what each layer added.`),
      hbars(layerBars(token.layers)),
      h("details", null, h("summary", null, "Norms and cosines"), h("p", { class: "note" }, "A logit is a dot product: norm of the hidden state × norm of the token’s row of the LM head × cosine between them."),
        dataTable("Factors of the logits", ["token", "|h|", "|row|", "cosine", "logit", "probability"],
          token.top.map((one) => [[h("code", null, shown(one)), one.chosen ? " chosen" : ""], one.hidden_length.toFixed(2), one.row_length.toFixed(3), signed(one.cosine, 3), signed(one.logit), percent(one.probability)]))));
  }
}

const ending = (made) => (made ? "." : "No token was generated.");

// The direct path, then layers; many layers are joined into groups of equal size.
function layerBars([direct, ...layers]) {
  const size = Math.ceil(layers.length / MOST_LAYERS);
  const bars = [{ name: "direct path", value: direct, label: signed(direct) }];
  for (let first = 0; first < layers.length; first += size) {
    const group = layers.slice(first, first + size);
    const value = group.reduce((a, b) => a + b, 0);
    bars.push({ name: size === 1 ? `layer ${first + 1}` : `layers ${first + 1}–${first + group.length}`, value, label: signed(value) });
  }
  return bars;
}
