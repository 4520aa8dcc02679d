// Axes of the charts: scales, ticks and how their numbers are written.
const grouped = (n) => String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
const short = (n) => {
  for (const [unit, size] of [["B", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(n) >= 0.9995 * size) return `${+(n / size).toPrecision(3)}${unit}`;
  return String(+n.toPrecision(3));
};

export function duration(seconds) {
  if (seconds < 100) return `${+seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h} h ${String(m).padStart(2, "0")} min` : `${m} min ${String(s).padStart(2, "0")} s`;
}

// Unit in which the ticks of a time axis are written, so that they fall on round numbers.
const clock = (most) => (most < 150 ? [1, "s"] : most < 9000 ? [60, "min"] : [3600, "h"]);

// What a chart can be drawn against. `text` writes one value in full, `tick` writes it beside the axis.
export const AXES = {
  step: { name: "steps", text: (v) => `step ${grouped(v)}`, tick: (v) => (v < 1e5 ? grouped(v) : short(v)), whole: true },
  seconds: { name: "training time", text: duration, unit: clock },
  tokens: { name: "tokens", text: (v) => `${short(v)} tokens`, tick: short, whole: true },
  width: { name: "width", text: (v) => `width ${grouped(v)}`, tick: grouped, log: true, only: true },
  share: { name: "LM head share", text: (v) => `LM head ${(100 * v).toFixed(1)}% of the untied model`, tick: (v) => `${+(100 * v).toPrecision(2)}%` },
  params: { name: "parameters", text: (v) => `${grouped(v)} parameters`, tick: short, log: true },
  bytes: { name: "packed bytes", text: (v) => `${grouped(v)} bytes packed`, tick: short, log: true },
  rate: { name: "peak learning rate", text: (v) => `learning rate ${+v.toPrecision(4)}`, tick: (v) => String(+v.toPrecision(2)), log: true, only: true },
  rank: { name: "rank", text: (v) => `rank ${grouped(v)}`, tick: grouped, whole: true },
  count: { name: "count in the training text", text: (v) => `count ${grouped(Math.round(v))}`, tick: short, log: true },
};

// Round numbers between low and high, about so many.
export function ticks(low, high, about, whole = false) {
  const rough = Math.max((high - low) / about, whole ? 1 : 0) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((candidate) => candidate >= 0.999 * rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) found.push(+(at * step).toPrecision(12));
  return found;
}

// On a logarithmic axis: as many of 1, 2, 3, 5 of each power of ten as there is room for, or round numbers if the range is small.
function logTicks(low, high, about) {
  if (high / low < 8) return ticks(low, high, about).filter((t) => t > 0);
  const all = (digits) => {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++) for (const m of digits) found.push(+(m * 10 ** p).toPrecision(3));
    return found.filter((t) => t >= low * 0.999 && t <= high * 1.001);
  };
  const fits = [[1, 2, 3, 5], [1, 2, 5], [1, 3], [1]].map(all).find((found) => found.length <= about + 2);
  if (fits) return fits;
  const powers = all([1]);
  return powers.filter((_, i) => i % Math.ceil(powers.length / about) === 0);
}

// A scale from values to pixels. `values` are all that must fit; `pad` is the fraction of free space at both ends.
export function scale(values, from, to, { log = false, pad = 0, about = 5, whole = false, zero = false, only = false, unit = null } = {}) {
  const kept = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  let [low, high] = kept.length ? [Infinity, -Infinity] : [log ? 1 : 0, log ? 10 : 1];
  for (const v of kept) [low, high] = [Math.min(low, v), Math.max(high, v)];
  if (zero && !log) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const to01 = log ? Math.log : (v) => v;
  let [a, b] = [to01(low), to01(high)];
  const room = (b - a) * pad || (b > a ? 0 : log ? 0.5 : Math.abs(a) * 0.1 || 1);
  [a, b] = [a - room, b + room];
  const [bottom, top] = log ? [Math.exp(a), Math.exp(b)] : [a, b];
  const [size, name] = unit ? unit(top) : [1, ""];
  const marks = only ? [...new Set(kept)].sort((x, y) => x - y) : log ? logTicks(bottom, top, about) : ticks(bottom / size, top / size, about, whole).map((t) => t * size);
  const at = (v) => from + ((to01(v) - a) / (b - a)) * (to - from);
  return { at, ticks: marks, size, name, log, fits: (v) => Number.isFinite(v) && (!log || v > 0) };
}
