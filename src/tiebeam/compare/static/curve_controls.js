// Controls of a page's charts: the axis, the scale, smoothing, the later half, and a legend that leaves curves out.
import { AXES } from "./axes.js";
import { el, sample } from "./curves.js";

let made = 0;

// One of several as radio buttons. options: [[value, name], ...]
export function choice(label, options, value, choose) {
  const name = `choice-${++made}`;
  return el("fieldset", { class: "plot-choices" }, el("legend", {}, label), options.map(([one, words]) => el("label", {},
    el("input", { type: "radio", name, value: one, checked: one === value, onchange: () => choose(one) }), el("span", {}, words))));
}

// One group for all charts of `view`. The controls stay in place while charts are redrawn, so focus is kept.
export function controls(view, { axes = ["step", "seconds", "tokens"], log = true, smoothing = true, late = true, label = "Charts" } = {}) {
  const parts = [];
  if (axes.length > 1) parts.push(choice("Against", axes.map((axis) => [axis, AXES[axis].name]), view.axis, (axis) => view.set({ axis })));
  if (log) parts.push(el("label", { class: "plot-check" }, el("input", { type: "checkbox", checked: view.log, onchange: (event) => view.set({ log: event.target.checked }) }), "Log scale"));
  if (late) parts.push(el("label", { class: "plot-check" }, el("input", { type: "checkbox", checked: view.late, onchange: (event) => view.set({ late: event.target.checked }) }), "Second half only"));
  if (smoothing) {
    const amount = el("output", {}, view.smoothing ? view.smoothing.toFixed(2) : "off");
    parts.push(el("label", { class: "plot-check" }, "Smoothing", el("input", { type: "range", min: "0", max: "1", step: "0.05", value: String(view.smoothing), oninput: (event) => {
      const weight = Number(event.target.value);
      amount.textContent = weight ? weight.toFixed(2) : "off";
      view.set({ smoothing: weight });
    } }), amount));
  }
  return el("div", { class: "plot-controls", role: "group", "aria-label": label }, parts);
}

// Buttons that show and hide curves. items: {key, name, colour, dash, line}
export function legend(items, view) {
  return el("ul", { class: "plot-legend" }, items.map((one) => {
    const button = el("button", { type: "button", "aria-pressed": String(!view.hidden.has(one.key)), onclick: () => {
      view.toggle(one.key);
      button.setAttribute("aria-pressed", String(!view.hidden.has(one.key)));
    } }, sample(one), one.name);
    return el("li", {}, button);
  }));
}
