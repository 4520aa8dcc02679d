// Bars of the studio. Every bar has its name and its value beside it as text.
import { h } from "./dom.js";
import { human } from "./numbers.js";

// Horizontal bars with a zero line where values may be negative. items: {name, value, label, on, tone}
export function hbars(items, { low, high } = {}) {
  const from = Math.min(0, low ?? Math.min(...items.map((item) => item.value)));
  const to = Math.max(1e-9, high ?? Math.max(...items.map((item) => item.value)), from + 1e-9);
  const at = (x) => `${(100 * (Math.max(from, Math.min(to, x)) - from)) / (to - from)}%`;
  return h("div", { class: "hbars" }, items.map((item) => h("div", { class: `hbar${item.on ? " on" : ""}` },
    h("span", { class: "name" }, item.name),
    h("span", { class: "track", "aria-hidden": "true" },
      from < 0 ? h("span", { class: "zero", style: { left: at(0) } }) : null,
      h("span", {
        class: `fill ${item.tone ?? (item.value < 0 ? "minus" : "plus")}`,
        style: { left: item.value < 0 ? at(item.value) : at(0), width: `${(100 * Math.abs(Math.max(from, Math.min(to, item.value)))) / (to - from)}%` },
      })),
    h("span", { class: "amount" }, item.label ?? item.value.toFixed(2)))));
}

// Horizontal bars that are updated in place, so that they move: {element, update(items, {low, high})}.
export function liveBars() {
  const element = h("div", { class: "hbars" });
  let rows = [];
  function update(items, range) {
    const next = hbars(items, range);
    if (rows.length !== items.length) element.replaceChildren(...next.children);
    else [...next.children].forEach((row, i) => copyRow(rows[i], row));
    rows = [...element.children];
  }
  return { element, update };
}

function copyRow(old, row) {
  old.className = row.className;
  for (const part of ["name", "amount"]) old.querySelector(`.${part}`).textContent = row.querySelector(`.${part}`).textContent;
  const [fill, wanted] = [old, row].map((node) => node.querySelector(".fill"));
  fill.className = wanted.className;
  for (const name of ["left", "width"]) fill.style.setProperty(name, wanted.style.getPropertyValue(name));
  const [zero, moved] = [old, row].map((node) => node.querySelector(".zero"));
  zero?.remove();
  if (moved) old.querySelector(".track").prepend(moved);
}

// Tied and untied model as bars of one scale. trunk (non-embedding parameters) and matrix are BigInt. `own` marks the
// bar of a model: true if it is tied.
export function shareBars(trunk, matrix, own = null) {
  const whole = trunk + 2n * matrix;
  const width = (part) => ({ width: `${Number((part * 1_000_000n) / whole) / 10_000}%` });
  const bar = (name, tied, parts, total) => h("div", { class: `stackbar${own === tied ? " own" : ""}` }, h("span", null, name, own === tied ? h("small", null, " this model") : null),
    h("span", { class: "track", "aria-hidden": "true" }, parts), h("span", { class: "amount" }, human(total)));
  return h("div", { class: "bars" },
    bar("tied", true, [h("span", { class: "trunk", style: width(trunk) }), h("span", { class: "table", style: width(matrix) })], trunk + matrix),
    bar("untied", false, [h("span", { class: "trunk", style: width(trunk) }), h("span", { class: "table", style: width(matrix) }), h("span", { class: "second", style: width(matrix) })], whole),
    h("ul", { class: "legend" },
      h("li", null, h("span", { class: "swatch trunk", "aria-hidden": "true" }), "non-embedding parameters"),
      h("li", null, h("span", { class: "swatch tied", "aria-hidden": "true" }), "embedding"),
      h("li", null, h("span", { class: "swatch untied", "aria-hidden": "true" }), "separate LM head")));
}
