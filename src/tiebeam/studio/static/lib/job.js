// Long work of the server: a progress bar with the time left, a way to cancel, then the result.
import { job } from "./api.js";
import { h } from "./dom.js";

const left = (seconds) => (seconds === null ? "" : seconds < 90 ? `, about ${Math.max(1, Math.round(seconds))} s left` : `, about ${Math.round(seconds / 60)} min left`);

// The progress of one piece of work, with a button that cancels it: {element, update(progress)}.
export function meter(label, cancel) {
  const bar = h("progress", { max: 1, "aria-label": label });
  const text = h("p", { class: "note", role: "status" }, "Starting …");
  const element = h("div", { class: "job" }, bar, text, h("button", { type: "button", class: "plain tiny", onclick: cancel }, "Cancel"));
  function update({ stage, done, total, seconds_left }) {
    if (total) bar.value = done / total;
    else bar.removeAttribute("value");
    text.textContent = `${stage}${total ? `, ${Math.floor((100 * done) / total)}%` : " …"}${left(seconds_left)}`;
  }
  return { element, update };
}

// {element, start()}: path() and options() are asked when the work starts; show(result) returns nodes.
export function jobButton(label, path, show, options = () => ({})) {
  const out = h("div", { class: "stack" });
  const button = h("button", { type: "button", onclick: () => start() }, label);
  let running = null;
  async function start() {
    running?.abort();
    const mine = (running = new AbortController());
    const shown = meter(label, () => mine.abort());
    button.disabled = true;
    out.replaceChildren(shown.element);
    try {
      const result = await job(path(), shown.update, { ...options(), signal: mine.signal });
      if (running === mine) out.replaceChildren(...show(result));
    } catch (error) {
      if (running === mine) out.replaceChildren(h("p", { class: error.name === "AbortError" ? "note" : "error", role: "status" }, error.name === "AbortError" ? "Cancelled." : error.message));
    }
    if (running === mine) button.disabled = false;
  }
  return { element: h("div", { class: "stack" }, h("div", null, button), out), start, started: () => running !== null };
}
