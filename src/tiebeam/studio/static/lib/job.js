// A button that starts long work of the server: a progress bar with the time left, a way to cancel, then the result.
import { job } from "./api.js";
import { h } from "./dom.js";

const left = (seconds) => (seconds === null ? "" : seconds < 90 ? `, about ${Math.max(1, Math.round(seconds))} s left` : `, about ${Math.round(seconds / 60)} min left`);

// {element, start()}: path() and options() are asked when the work starts; show(result) returns nodes.
export function jobButton(label, path, show, options = () => ({})) {
  const out = h("div", { class: "stack", role: "status" });
  const button = h("button", { type: "button", onclick: () => start() }, label);
  let running = null;
  async function start() {
    running?.abort();
    const mine = (running = new AbortController());
    const meter = h("progress", { max: 1, "aria-label": label });
    const text = h("p", { class: "note" }, "Starting …");
    const cancel = h("button", { type: "button", class: "plain tiny", onclick: () => mine.abort() }, "Cancel");
    button.disabled = true;
    out.replaceChildren(h("div", { class: "job" }, meter, text, cancel));
    try {
      const result = await job(path(), ({ stage, done, total, seconds_left }) => {
        if (total) meter.value = done / total;
        else meter.removeAttribute("value");
        text.textContent = `${stage}${total ? `, ${Math.floor((100 * done) / total)}%` : " …"}${left(seconds_left)}`;
      }, { ...options(), signal: mine.signal });
      if (running === mine) out.replaceChildren(...show(result));
    } catch (error) {
      if (running === mine) out.replaceChildren(h("p", { class: error.name === "AbortError" ? "note" : "error" }, error.name === "AbortError" ? "Cancelled." : error.message));
    }
    if (running === mine) button.disabled = false;
  }
  return { element: h("div", { class: "stack" }, h("div", null, button), out), start, started: () => running !== null };
}
