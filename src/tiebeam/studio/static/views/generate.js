// Generate view: streamed text, and for each token its logits and their three factors.
import { get, postStream } from "../lib/api.js";
import { freshId, h, scroller } from "../lib/dom.js";
import { hbars } from "../lib/charts.js";
import { visible } from "../lib/visible.js";
import { humanBytes, percent, signed } from "../lib/numbers.js";

const shown = (token) => (token.text ?? `#${token.id}`).replaceAll("\n", "⏎").replace(/^ | $/g, "␣");

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
  const behind = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Generate text, then select a token to see its logits."));
  const go = h("button", { type: "submit", class: "first" }, "Generate");
  const halt = h("button", { type: "button", disabled: true, onclick: () => stopper?.abort() }, "Stop");
  let stopper = null;
  main.replaceChildren(h("h1", null, "Generate"),
    h("div", { class: "side-by-side play" },
      h("form", { class: "panel stack", "aria-label": "Settings", onsubmit: (event) => { event.preventDefault(); run(); } },
        field("Model", model), field("Prompt", prompt), field("New tokens", amount), field("Temperature", temperature, "0 always takes the most likely token"), field("Seed", seed), h("div", { class: "row" }, go, halt), held),
      h("div", { class: "stack-wide" }, h("section", { class: "panel stack", "aria-labelledby": "text" }, h("h2", { id: "text" }, "Text"), output, status),
        h("section", { class: "panel stack", "aria-labelledby": "behind" }, h("h2", { id: "behind" }, "Logits of the token"), behind))));

  await tellMemory();

  // Opening another model drops the weights of this one, unless --memory allows both.
  async function tellMemory() {
    const { loaded } = (await get("api/status")).memory;
    held.textContent = loaded.length ? `Weights in memory: ${loaded.map((one) => `${visible(one.name)} (${humanBytes(one.bytes)})`).join(", ")}.` : "No weights in memory yet.";
  }

  async function run() {
    stopper?.abort();
    stopper = new AbortController();
    go.disabled = true;
    halt.disabled = false;
    status.textContent = "Opening the model …";
    output.replaceChildren(h("span", { class: "prompt" }, prompt.value));
    let made = 0;
    const began = performance.now();
    const body = { model: model.value, prompt: prompt.value, new: Number(amount.value), temperature: Number(temperature.value), ...(Number(temperature.value) > 0 ? { seed: Number(seed.value) } : {}) };
    try {
      await postStream("api/generate", body, (name, data) => {
        if (name === "error") throw new Error(visible(data.error));
        if (data.prompt || data.done) return;
        made++;
        const button = h("button", { type: "button", "aria-pressed": "false", "aria-label": data.end ? "end of text" : `token ${made}: ${shown(data)}`, onclick: () => explain(button, data) }, data.end ? "∎" : data.text || "·");
        output.append(button);
        explain(button, data);
        status.textContent = `${made} tokens, ${((1000 * made) / (performance.now() - began)).toFixed(1)} per second`;
      }, stopper.signal);
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
    behind.replaceChildren(
      h("p", null, "A logit is a dot product: norm of the hidden state × norm of the token’s row of the LM head × cosine between them."),
      hbars(token.top.map((one) => ({ name: shown(one), value: one.logit, label: `${signed(one.logit)}  ${percent(one.probability)}`, on: one.chosen }))),
      scroller("Factors of the logits", h("table", { class: "data" },
        h("thead", null, h("tr", null, ["token", "|h|", "|row|", "cosine", "logit", "probability"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, token.top.map((one) => h("tr", null, h("th", { scope: "row" }, h("code", null, shown(one)), one.chosen ? " chosen" : ""), h("td", null, one.hidden_length.toFixed(2)), h("td", null, one.row_length.toFixed(3)), h("td", null, signed(one.cosine, 3)), h("td", null, signed(one.logit)), h("td", null, percent(one.probability))))))));
  }
}

const ending = (made) => (made ? "." : "No token was generated.");
