// Known models by size and by the share of the LM head: values by pointer and by keyboard, and all of them as a table.
import { h, s, tieWord } from "./dom.js";
import { grouped, human, percent } from "./numbers.js";
import { dataTable } from "./table.js";

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
  });
  if (yours) {
    const [cx, cy] = [x(yours.total), y(yours.share)];
    const flip = cx > W * 0.7;
    chart.append(s("circle", { class: "yours", cx, cy, r: 11 }), s("circle", { cx, cy, r: 2.5, fill: "currentColor" }),
      s("text", { class: "yours-label", x: cx + (flip ? -17 : 17), y: cy + 5, "text-anchor": flip ? "end" : "start" }, `yours, ${percent(yours.share)}`));
  }
  return h("div", null, chart, h("ul", { class: "legend" }, h("li", null, tieWord(true)), h("li", null, tieWord(false))), tip);
}

// The models of the chart as a table, the largest share first.
export function modelTable(models) {
  const rows = models.filter((model) => model.head_share !== null).sort((a, b) => b.head_share - a.head_share);
  return h("details", null, h("summary", null, `All ${rows.length} models as a table`),
    dataTable("Known models", ["model", "tie", "share", "one matrix", "total"], rows.map((model) => [model.name, tieWord(model.tied), percent(model.head_share), human(model.matrix), human(model.total)])));
}
