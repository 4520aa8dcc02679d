// Curves with values on hover and by keyboard, shared by the comparison's report and the studio. SVG, no library.
//
// A series is {key, name, colour, dash, thin, line, points}; a point is {y, step, seconds, tokens, ...} with one number
// per axis it can be drawn against, and `low` and `high` where it has an interval. `line: false` draws single marks.
// Texts are added as text. Styles are set by property: the studio's Content-Security-Policy forbids style attributes.
import { AXES, scale } from "./axes.js";

const SVG = "http://www.w3.org/2000/svg";
const [LEFT, RIGHT, TOP, BOTTOM] = [54, 14, 12, 38];
const [NAMES, NAME_LINE] = [112, 14]; // room for names at the ends of curves, and the height of one
const MOST_IN_TIP = 8; // curves, those nearest to the chosen point

export function el(tag, props = {}, ...children) {
  const node = tag[0] === "/" ? document.createElementNS(SVG, tag.slice(1)) : document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (["value", "checked", "disabled"].includes(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// What a reader chose, for all charts of a page: the axis, a logarithmic scale, smoothing, the later half only, and the
// curves left out.
export class View {
  constructor({ axis = "step", log = false, smoothing = 0, late = false } = {}) {
    Object.assign(this, { axis, log, smoothing, late, hidden: new Set(), charts: new Set() });
  }

  set(changes) {
    Object.assign(this, changes);
    for (const chart of this.charts) chart.draw();
  }

  toggle(key) {
    if (!this.hidden.delete(key)) this.hidden.add(key);
    this.set({});
  }
}

// Mean over a window around each value, so that the curve is not shifted; the window shrinks towards both ends.
// `amount` 1 is a window of a fifth of all values on each side.
export function smoothed(values, amount) {
  const sums = [0];
  for (const value of values) sums.push(sums.at(-1) + value);
  const most = Math.round((amount * values.length) / 5);
  return values.map((_, i) => {
    const half = Math.min(most, i, values.length - 1 - i);
    return (sums[i + half + 1] - sums[i - half]) / (2 * half + 1);
  });
}

// At most two points per pixel column, the lowest and the highest, so that no spike is lost. path: [[x, y], ...]
function thinned(path, columns) {
  if (path.length <= 2 * columns) return path;
  const found = [];
  for (let i = 0; i < path.length; ) {
    const column = Math.floor(path[i][0]);
    let [low, high] = [i, i];
    for (; i < path.length && Math.floor(path[i][0]) === column; i++) {
      if (path[i][1] < path[low][1]) low = i;
      if (path[i][1] > path[high][1]) high = i;
    }
    found.push(path[Math.min(low, high)]);
    if (low !== high) found.push(path[Math.max(low, high)]);
  }
  return found;
}

const drawn = (path) => path.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Index of the point nearest to `x`; at(point) rises from point to point.
function nearest(points, at, x) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (at(points[middle]) < x) low = middle;
    else high = middle;
  }
  return Math.abs(at(points[low]) - x) <= Math.abs(at(points[high]) - x) ? low : high;
}

export class Chart {
  // `label` names the values, `digits` are their decimals; `smooth`: the smoothing of the view applies; `zero`: a line at
  // 0; `axes`: names in AXES that this chart can have; `log` overrides the view's logarithmic scale; `text` writes a value
  // and `tick` writes one beside the axis; `named`: each curve has its name at its end.
  constructor({ title, label, view = new View(), axes = ["step", "seconds", "tokens"], digits = 4, smooth = false, zero = false, log = null, height = 260, text = null, tick = null, named = false }) {
    Object.assign(this, { title, label, view, axes, smooth, zero, log, tick, right: named ? NAMES : RIGHT, tallest: height, series: [], at: null });
    this.text = text ?? ((value) => value.toFixed(digits).replace("-", "−"));
    this.svg = el("/svg", { class: "plot-lines", "aria-hidden": "true", focusable: "false" });
    this.cursor = el("/g", { class: "plot-cursor" });
    this.tip = el("div", { class: "plot-tip", hidden: true });
    this.stage = el("div", { class: "plot-stage", role: "slider", tabindex: "0", "aria-label": `${title}. Arrow keys move along the curve and between curves`, "aria-valuemin": "0", "aria-valuenow": "0", "aria-valuemax": "0", "aria-valuetext": "no point chosen",
      onkeydown: (event) => this.key(event), onblur: () => this.clear(),
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event), onpointerleave: (event) => { if (event.pointerType === "mouse") this.clear(); } }, this.svg, this.tip);
    this.rows = el("div", { class: "plot-scroll", role: "group", "aria-label": `Data of ${title}`, tabindex: "0" });
    this.data = el("details", { class: "plot-data", ontoggle: () => this.table() }, el("summary", {}, "Data"), this.rows);
    this.note = el("p", { class: "plot-note", hidden: true });
    this.node = el("div", { class: "plot" }, el("p", { class: "plot-label" }, label), this.stage, this.note, this.data);
    view.charts.add(this);
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width && width !== this.width) { this.width = width; this.draw(); }
    }).observe(this.stage);
  }

  get axis() { return this.axes.includes(this.view.axis) ? this.view.axis : this.axes[0]; }

  set(series) {
    this.series = series;
    this.draw();
  }

  // The curves that are shown, in the order of the axis, without points that the axis or the scale cannot place.
  shown() {
    const { axis } = this;
    const log = this.log ?? this.view.log;
    const xLog = AXES[axis].log;
    const places = (p) => Number.isFinite(p.y) && (!log || p.y > 0) && Number.isFinite(p[axis]) && (!xLog || p[axis] > 0);
    const found = this.series.filter((one) => !this.view.hidden.has(one.key))
      .map((one) => ({ ...one, points: one.points.filter(places).sort((a, b) => a[axis] - b[axis]) })).filter((one) => one.points.length);
    const half = this.view.late ? Math.max(...found.map((one) => one.points.at(-1)[axis])) / 2 : -Infinity;
    return found.map((one) => ({ ...one, points: one.points.filter((p) => p[axis] >= half) })).filter((one) => one.points.length);
  }

  draw() {
    const width = this.width ?? 600;
    const { axis, right } = this;
    const height = this.height = Math.round(Math.max(150, Math.min(this.tallest, 0.8 * width)));
    const lines = this.lines = this.shown();
    const all = lines.flatMap((one) => one.points);
    const about = Math.max(2, Math.floor((width - LEFT - right) / 75));
    const log = (this.log ?? this.view.log) && !this.zero;
    const X = this.X = scale(all.map((p) => p[axis]), LEFT, width - right, { ...AXES[axis], about, pad: AXES[axis].log ? 0.08 : 0.01 });
    const Y = this.Y = scale(all.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]), height - BOTTOM, TOP, { log, pad: 0.06, zero: this.zero });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const parts = [];
    const yText = this.tick ?? (log ? (t) => String(+t.toPrecision(3)) : tickText(Y.ticks));
    for (const tick of Y.ticks) parts.push(el("/line", { class: "plot-grid", x1: LEFT, x2: width - right, y1: Y.at(tick), y2: Y.at(tick) }), el("/text", { class: "plot-tick", x: LEFT - 8, y: Y.at(tick) + 4, "text-anchor": "end" }, yText(tick)));
    const xText = AXES[axis].tick ?? ((v) => String(+(v / X.size).toPrecision(6)));
    for (const tick of X.ticks) parts.push(el("/line", { class: "plot-base", x1: X.at(tick), x2: X.at(tick), y1: height - BOTTOM, y2: height - BOTTOM + 4 }), el("/text", { class: "plot-tick", x: X.at(tick), y: height - BOTTOM + 17, "text-anchor": "middle" }, xText(tick)));
    parts.push(el("/line", { class: "plot-base", x1: LEFT, x2: width - right, y1: height - BOTTOM, y2: height - BOTTOM }),
      el("/text", { class: "plot-tick", x: width - right, y: height - 4, "text-anchor": "end" }, `${AXES[axis].name}${X.name ? `, ${X.name}` : ""} →`));
    if (this.zero) parts.push(el("/line", { class: "plot-zero", x1: LEFT, x2: width - right, y1: Y.at(0), y2: Y.at(0) }));
    if (!lines.length) parts.push(el("/text", { class: "plot-tick", x: (LEFT + width - right) / 2, y: height / 2 - 8, "text-anchor": "middle" }, "no values yet"));
    // Intervals at the same place are drawn side by side.
    const beside = lines.filter((one) => one.points.some((p) => Number.isFinite(p.low)));
    const room = Math.min(7, 30 / beside.length);
    for (const one of lines) {
      one.shift = beside.length > 1 && beside.includes(one) ? room * (beside.indexOf(one) - (beside.length - 1) / 2) : 0;
      one.group = el("/g", { class: "plot-series" }, this.marks(one, width));
    }
    this.svg.replaceChildren(...parts, ...lines.map((one) => one.group), ...(right > RIGHT ? this.names(width - right + 6) : []), this.cursor);
    this.svg.classList.toggle("many", lines.length > 2);
    const unplaced = !lines.length && this.series.some((one) => !this.view.hidden.has(one.key) && one.points.length);
    const apart = lines.filter((one) => one.line === false).map((one) => el("span", { class: "plot-apart" }, sample(one), `${one.name}: `, el("b", {}, this.text(one.points.at(-1).y))));
    this.note.replaceChildren(...(unplaced ? [`These runs have no values for ${AXES[axis].name}.`] : apart));
    this.note.hidden = !unplaced && !apart.length;
    this.table();
    if (this.at) this.choose(lines.findIndex((one) => one.key === this.at.key), this.at.index, true);
  }

  // The names of the curves at their ends, moved apart where ends are close.
  names(x) {
    const ends = this.lines.map((one) => ({ one, y: this.Y.at(one.points.at(-1).y) + 4 })).sort((a, b) => a.y - b.y);
    const lowest = this.height - BOTTOM + 4;
    for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + NAME_LINE);
    ends.reverse().forEach((end, i) => { end.y = Math.min(end.y, i ? ends[i - 1].y - NAME_LINE : lowest); });
    return ends.map(({ one, y }) => el("/text", { class: "plot-name", x, y }, one.name));
  }

  marks(one, width) {
    const { X, Y, axis } = this;
    const style = { stroke: one.colour, ...(one.dash ? { "stroke-dasharray": one.dash } : {}) };
    const place = (values) => one.points.map((p, i) => [X.at(p[axis]) + one.shift, Y.at(values ? values[i] : p.y)]);
    const path = (points, kind) => el("/path", { class: `plot-line ${kind}`, style, d: drawn(thinned(points, width)) });
    const parts = [];
    for (const p of one.points.filter((p) => Number.isFinite(p.low))) {
      const [x, low, high] = [X.at(p[axis]) + one.shift, Y.at(p.low), Y.at(p.high)];
      parts.push(el("/path", { class: "plot-interval", style: { stroke: one.colour }, d: `M${x} ${low}V${high}M${x - 5} ${low}h10M${x - 5} ${high}h10` }));
    }
    if (one.line !== false && one.points.length > 1) {
      const weight = this.smooth ? this.view.smoothing : 0;
      parts.push(path(place(), weight ? "faint" : one.thin ? "thin" : ""));
      if (weight) parts.push(path(place(smoothed(one.points.map((p) => p.y), weight)), ""));
    }
    const few = one.line === false || one.points.length === 1 || Number.isFinite(one.points[0].low) || (one.points.length <= 40 && one.points.length < width / 14);
    if (few) for (const [x, y] of place()) parts.push(one.line === false ? el("/path", { class: "plot-mark", style: { stroke: one.colour }, d: `M${x} ${y - 6}l6 6l-6 6l-6 -6z` }) : el("/circle", { class: "plot-dot", style: { fill: one.colour }, cx: x, cy: y, r: one.thin ? 2.2 : 3 }));
    return parts;
  }

  // Choose point `index` of curve `line`: the cursor, the tip and the text that is read out.
  choose(line, index, quiet = false) {
    const one = this.lines[line];
    if (!one) return quiet ? this.clear() : undefined;
    const { axis, X, Y } = this;
    const point = one.points[Math.max(0, Math.min(index, one.points.length - 1))];
    this.at = { key: one.key, index: one.points.indexOf(point) };
    const near = this.lines.map((other) => ({ other, p: other === one ? point : other.points[nearest(other.points, (p) => p[axis], point[axis])] }))
      .filter(({ other, p }) => other === one || Math.abs(X.at(p[axis]) - X.at(point[axis])) < 40);
    const limit = [...near].sort((a, b) => Math.abs(a.p.y - point.y) - Math.abs(b.p.y - point.y))[MOST_IN_TIP - 1];
    const values = near.length <= MOST_IN_TIP ? near : near.filter(({ p }) => Math.abs(p.y - point.y) <= Math.abs(limit.p.y - point.y)).slice(0, MOST_IN_TIP);
    for (const other of this.lines) other.group.classList.toggle("on", other === one);
    this.svg.classList.add("choosing");
    const x = X.at(point[axis]);
    this.cursor.replaceChildren(el("/line", { x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM }),
      ...values.map(({ other, p }) => el("/circle", { cx: X.at(p[axis]) + other.shift, cy: Y.at(p.y), r: other === one ? 5 : 3.5, style: { fill: other.colour } })));
    const others = this.axes.filter((name) => name !== axis && Number.isFinite(point[name])).map((name) => AXES[name].text(point[name]));
    const interval = (p) => (Number.isFinite(p.low) && (p === point || values.length <= 3) ? `95% CI ${this.text(p.low)} to ${this.text(p.high)}` : "");
    const more = (p) => [interval(p), p.note, p[axis] === point[axis] ? "" : `at ${AXES[axis].text(p[axis])}`].filter(Boolean).join(", ");
    this.tip.replaceChildren(el("strong", {}, AXES[axis].text(point[axis])), others.length ? el("span", { class: "plot-soft" }, others.join(" · ")) : "",
      el("table", {}, el("tbody", {}, values.map(({ other, p }) => el("tr", { class: other === one ? "on" : null }, el("td", {}, sample(other), other.name), el("td", {}, this.text(p.y), more(p) ? el("span", { class: "plot-more" }, more(p)) : null))))),
      near.length > values.length ? el("span", { class: "plot-soft" }, `and ${near.length - values.length} more`) : "");
    this.tip.hidden = false;
    const width = this.width ?? 600;
    const side = x > width / 2 ? { left: "auto", right: `${Math.max(0, width - x + 12)}px` } : { left: `${x + 12}px`, right: "auto" };
    for (const [name, v] of Object.entries(side)) this.tip.style.setProperty(name, v);
    this.tip.style.setProperty("max-width", `${Math.max(150, (x > width / 2 ? x : width - x) - 16)}px`);
    this.stage.setAttribute("aria-valuemax", String(one.points.length - 1));
    this.stage.setAttribute("aria-valuenow", String(this.at.index));
    this.stage.setAttribute("aria-valuetext", `${[AXES[axis].text(point[axis]), ...others].join(", ")}: ${[...values].sort((a, b) => (b.other === one) - (a.other === one)).map(({ other, p }) => `${other.name} ${this.text(p.y)}${more(p) ? ` (${more(p)})` : ""}`).join("; ")}`);
  }

  clear() {
    this.at = null;
    this.tip.hidden = true;
    this.svg.classList.remove("choosing");
    this.cursor.replaceChildren();
    this.stage.setAttribute("aria-valuetext", "no point chosen");
  }

  point(event) {
    if (!this.lines?.length) return;
    const box = this.svg.getBoundingClientRect();
    const scaleTo = (this.width ?? 600) / box.width;
    const [x, y] = [(event.clientX - box.left) * scaleTo, (event.clientY - box.top) * scaleTo];
    let best = null;
    this.lines.forEach((one, line) => {
      const index = nearest(one.points, (p) => this.X.at(p[this.axis]), x);
      const p = one.points[index];
      const far = Math.hypot(this.X.at(p[this.axis]) + one.shift - x, this.Y.at(p.y) - y);
      if (!best || far < best.far) best = { line, index, far };
    });
    this.choose(best.line, best.index);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { lines } = this;
    if (event.key === "Escape") this.clear();
    if (!lines?.length || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"].includes(event.key)) return;
    event.preventDefault();
    if (!this.at) return this.choose(0, event.key === "Home" ? 0 : lines[0].points.length - 1);
    const line = Math.max(0, lines.findIndex((one) => one.key === this.at.key));
    const { points } = lines[line];
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const next = (line + (event.key === "ArrowUp" ? lines.length - 1 : 1)) % lines.length;
      return this.choose(next, nearest(lines[next].points, (p) => p[this.axis], points[this.at.index][this.axis]));
    }
    const page = Math.max(1, Math.round(points.length / 10));
    const moved = { ArrowLeft: -1, ArrowRight: 1, PageUp: page, PageDown: -page, Home: -Infinity, End: Infinity }[event.key];
    this.choose(line, Math.max(0, Math.min(points.length - 1, this.at.index + moved)));
  }

  // The numbers behind the chart, made when they are opened: one row per point.
  table() {
    if (!this.data.open) return;
    const columns = this.axes.filter((axis) => this.series.some((one) => one.points.some((p) => Number.isFinite(p[axis]))));
    const interval = this.series.some((one) => one.points.some((p) => Number.isFinite(p.low)));
    const rows = this.lines.flatMap((one) => {
      const every = Math.ceil(one.points.length / 300);
      return one.points.filter((_, i) => i % every === 0 || i === one.points.length - 1).map((p) => el("tr", {}, el("th", { scope: "row" }, one.name),
        columns.map((axis) => el("td", {}, Number.isFinite(p[axis]) ? AXES[axis].text(p[axis]).replace(/^(step|width) /, "").replace(/ tokens$/, "") : "–")), el("td", {}, this.text(p.y)), interval ? el("td", {}, Number.isFinite(p.low) ? `${this.text(p.low)} to ${this.text(p.high)}` : "–") : null));
    });
    this.rows.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ["curve", ...columns.map((axis) => AXES[axis].name), this.label.split(",")[0], ...(interval ? ["95% interval"] : [])].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows)));
  }
}

// Ticks of one axis with the same number of decimals.
function tickText(all) {
  if (all.some((t) => Math.abs(t) >= 1e4)) return (t) => (t === 0 ? "0" : `${+(t / 1e3).toPrecision(4)}k`);
  const decimals = Math.max(0, ...all.map((t) => (String(+t.toPrecision(6)).split(".")[1] ?? "").length));
  return (t) => t.toFixed(Math.min(decimals, 5)).replace("-", "−");
}

// A short piece of a curve's line, for legends and tips.
export function sample(one) {
  const style = { stroke: one.colour, ...(one.dash ? { "stroke-dasharray": one.dash } : {}) };
  return el("/svg", { class: "plot-sample", viewBox: "0 0 24 10", width: "24", height: "10", "aria-hidden": "true" },
    one.line === false ? el("/path", { class: "plot-mark", style: { stroke: one.colour }, d: "M12 0.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z" }) : el("/path", { class: "plot-line", style, d: "M1 5H23" }));
}
