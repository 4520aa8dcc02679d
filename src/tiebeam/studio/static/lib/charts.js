// Charts of the studio, as SVG and HTML.
import { h, media, s, tieWord } from "./dom.js";
import { grouped, human, percent } from "./numbers.js";

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
  const bar = (name, tied, parts, total) => h("div", { class: `stackbar${own === tied ? " own" : ""}` }, h("span", null, name, own === tied ? h("span", { class: "quiet tiny" }, " this model") : null),
    h("span", { class: "track", "aria-hidden": "true" }, parts), h("span", { class: "amount" }, human(total)));
  return h("div", { class: "bars" },
    bar("tied", true, [h("span", { class: "trunk", style: width(trunk) }), h("span", { class: "table", style: width(matrix) })], trunk + matrix),
    bar("untied", false, [h("span", { class: "trunk", style: width(trunk) }), h("span", { class: "table", style: width(matrix) }), h("span", { class: "second", style: width(matrix) })], whole),
    h("ul", { class: "legend" },
      h("li", null, h("span", { class: "swatch trunk", "aria-hidden": "true" }), "non-embedding parameters"),
      h("li", null, h("span", { class: "swatch tied", "aria-hidden": "true" }), "embedding"),
      h("li", null, h("span", { class: "swatch untied", "aria-hidden": "true" }), "separate LM head")));
}

const diamond = (x, y, r) => `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`;

// Every known model: share of the head against size. `yours` is {share, total}; pick(model) on a click.
export function scatter(models, { yours = null, pick = null, narrow = false } = {}) {
  const [W, H, left, right, top, bottom] = narrow ? [380, 380, 38, 10, 14, 44] : [980, 430, 52, 20, 14, 44];
  const known = models.filter((model) => model.head_share !== null);
  const totals = known.map((model) => model.untied_total);
  const [low, high] = [Math.log10(Math.min(...totals, yours?.total ?? Infinity)) - 0.08, Math.log10(Math.max(...totals, yours?.total ?? 0)) + 0.08];
  const x = (total) => left + ((W - left - right) * (Math.log10(total) - low)) / (high - low);
  const y = (share) => H - bottom - (H - top - bottom) * Math.sqrt(share / 0.5); // spreads small shares
  const chart = s("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: "0",
    "aria-label": `${known.length} known models by size and by the share of the LM head; small models are tied, large ones are not. Arrow keys go from model to model${pick ? ", Enter takes one" : ""}.` });
  for (const share of [0.01, 0.05, 0.1, 0.2, 0.3, 0.5]) {
    chart.append(s("line", { class: "axis", x1: left, x2: W - right, y1: y(share), y2: y(share) }),
      s("text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, `${Math.round(100 * share)}%`));
  }
  for (let power = Math.ceil(low); power <= high; power++) {
    const name = ["1", "10", "100"][power % 3] + ({ 6: "M", 7: "M", 8: "M", 9: "B", 10: "B", 11: "B", 12: "T", 13: "T", 14: "T" }[power] ?? "");
    chart.append(s("line", { class: "axis", x1: x(10 ** power), x2: x(10 ** power), y1: top, y2: H - bottom }),
      s("text", { x: x(10 ** power), y: H - bottom + 18, "text-anchor": "middle" }, name));
  }
  chart.append(s("text", { x: W - right, y: H - 6, "text-anchor": "end" }, narrow ? "size →" : "parameters, untied →"),
    s("text", { x: left, y: H - 6 }, narrow ? "↑ LM head share" : "↑ LM head, share of the model"));
  const tip = h("p", { class: "tip quiet", "aria-live": "polite" }, "Point near a model, or use the arrow keys, to see its numbers", pick ? "; click it to use them." : ".");
  const ring = s("circle", { class: "near", r: 9, visibility: "hidden" });
  const describe = (model) => tip.replaceChildren(h("strong", null, model.name), " · ", tieWord(model.tied), ` · ${percent(model.head_share)} of ${human(model.untied_total)} · ${grouped(model.vocab)} × ${grouped(model.dim)}`);
  const places = known.map((model) => [model, x(model.untied_total), y(model.head_share)]).sort((a, b) => a[1] - b[1]);
  for (const [model, cx, cy] of places) {
    const mark = model.tied ? s("circle", { cx, cy, r: narrow ? 4 : 5.5 }) : s("path", { d: diamond(cx, cy, narrow ? 4.8 : 6.5) });
    mark.setAttribute("class", `mark ${model.tied ? "tied" : "untied"}`);
    chart.append(mark);
  }
  chart.append(ring);
  let at = -1;
  const select = (i) => {
    if (i === at) return;
    at = i;
    const [model, cx, cy] = places[i];
    for (const [name, value] of [["cx", cx], ["cy", cy], ["visibility", "visible"]]) ring.setAttribute(name, value);
    describe(model);
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const [px, py] = [((event.clientX - box.left) * W) / box.width, ((event.clientY - box.top) * H) / box.height];
    const far = places.map(([, cx, cy]) => Math.hypot(cx - px, cy - py));
    const near = far.indexOf(Math.min(...far));
    if (far[near] < 60) select(near);
  });
  chart.addEventListener("click", () => { if (at >= 0) pick?.(places[at][0]); });
  chart.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (by) select((at + by + places.length) % places.length);
    else if (event.key === "Enter" && at >= 0) pick?.(places[at][0]);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the lesson steps with the same keys
  });
  if (yours) {
    const [cx, cy] = [x(yours.total), y(yours.share)];
    const flip = cx > W * 0.7;
    chart.append(s("circle", { class: "yours", cx, cy, r: 11 }), s("circle", { cx, cy, r: 2.5, fill: "currentColor" }),
      s("text", { class: "yours-label", x: cx + (flip ? -17 : 17), y: cy + 5, "text-anchor": flip ? "end" : "start" }, `yours, ${percent(yours.share)}`));
  }
  return h("div", null, chart, h("ul", { class: "legend" }, h("li", null, tieWord(true)), h("li", null, tieWord(false))), tip);
}

// Curves: series of {name, tone, points: [[x, y], ...]}.
export function curves(series, { yLabel = "", xLabel = "step", height = 300, width = media("(max-width: 640px)").matches ? 360 : 900, refs = [], named = false } = {}) {
  const [left, right, top, bottom] = [56, named ? 96 : 14, 12, 40];
  const all = series.flatMap((line) => line.points);
  const chart = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${yLabel} against ${xLabel}: ${series.map((line) => `${line.name} ends at ${line.points.at(-1)?.[1].toPrecision(4) ?? "nothing yet"}`).join(", ")}` });
  if (!all.length) return chart;
  const xs = all.map((p) => p[0]);
  const ys = [...all.map((p) => p[1]), ...refs.map((ref) => ref.y)];
  const [x0, x1] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)];
  const pad = (Math.max(...ys) - Math.min(...ys)) * 0.06 || Math.abs(ys[0]) * 0.1 || 0.1;
  const [y0, y1] = [Math.min(...ys) - pad, Math.max(...ys) + pad];
  const X = (v) => left + ((width - left - right) * (v - x0)) / (x1 - x0);
  const Y = (v) => height - bottom - ((height - top - bottom) * (v - y0)) / (y1 - y0);
  for (const tick of ticks(y0, y1, 5)) {
    chart.append(s("line", { class: "axis", x1: left, x2: width - right, y1: Y(tick), y2: Y(tick) }),
      s("text", { x: left - 8, y: Y(tick) + 4, "text-anchor": "end" }, String(+tick.toPrecision(4))));
  }
  for (const tick of ticks(x0, x1, 6)) chart.append(s("text", { x: X(tick), y: height - bottom + 18, "text-anchor": "middle" }, grouped(Math.round(tick))));
  chart.append(s("text", { x: width - right, y: height - 4, "text-anchor": "end" }, `${xLabel} →`), s("text", { x: left, y: height - 4 }, `↑ ${yLabel}`));
  for (const ref of refs) {
    chart.append(s("line", { class: "ref", x1: left, x2: width - right, y1: Y(ref.y), y2: Y(ref.y) }),
      s("text", { x: left + 6, y: Y(ref.y) + 14 }, ref.name));
  }
  for (const line of series) {
    const kept = thin(line.points, 600);
    chart.append(s("path", { class: `line ${line.tone}`, d: kept.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join("") }));
    if (kept.length === 1) chart.append(s("circle", { class: `mark ${line.tone}`, cx: X(kept[0][0]), cy: Y(kept[0][1]), r: 3.5 }));
  }
  if (named) {
    let above = -Infinity;
    for (const line of [...series].sort((a, b) => b.points.at(-1)[1] - a.points.at(-1)[1])) {
      above = Math.max(above + 14, Y(line.points.at(-1)[1]) + 4);
      chart.append(s("text", { class: "line-name", x: width - right + 6, y: above }, line.name));
    }
  }
  return chart;
}

function ticks(low, high, about) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-12; at += step) found.push(at);
  return found;
}

const thin = (points, most) => (points.length <= most ? points : points.filter((_, i) => i % Math.ceil(points.length / most) === 0 || i === points.length - 1));
