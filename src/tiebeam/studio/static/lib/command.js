// A command line with a button that copies it.
import { h } from "./dom.js";

export function command(text) {
  const button = h("button", { type: "button", "aria-label": `Copy: ${text}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "press Ctrl+C";
      getSelection().selectAllChildren(code);
    }
  } }, "copy");
  const code = h("code", null, text);
  return h("div", { class: "command" }, code, button);
}
