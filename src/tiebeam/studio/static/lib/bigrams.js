// A toy language and zero-layer models fitted to it: token -> E -> (map) -> output matrix -> logits.
// Forms, initialization and Adam are those of tiebeam.lens.bigrams, at a smaller scale.
import { map2, softmax, times, timesT, transpose, zeros } from "./linalg.js";

export const TEXT =
  "New York City is big . San Francisco is old . Los Angeles is big . " +
  "New York is the big town . the town is old . San Francisco is the old town . " +
  "the old town is New York City . New York City is the big town . " +
  "Los Angeles is the New town . the big town is Los Angeles . the town is big .";

export function read(text) {
  const words = text.match(/[\p{L}\p{N}']+|[.,!?]/gu) ?? [];
  const vocabulary = [...new Set(words)];
  const place = new Map(vocabulary.map((word, i) => [word, i]));
  const counts = zeros(vocabulary.length, vocabulary.length);
  for (let i = 0; i + 1 < words.length; i++) counts[place.get(words[i])][place.get(words[i + 1])]++;
  return { words, vocabulary, counts };
}

// Smoothed log p(a, b) / p(a) p(b), as in tiebeam.lens.rank_bounds.
export function pmi(counts, smoothing = 0.5) {
  const rows = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const columns = transpose(counts).map((row) => row.reduce((a, b) => a + b, 0));
  const total = rows.reduce((a, b) => a + b, 0);
  return map2(counts, (n, i, j) => {
    if (!rows[i] || !columns[j]) return 0;
    const expected = (rows[i] * columns[j]) / total;
    const mixed = smoothing * Math.sqrt(expected);
    return Math.log((n + mixed) / (expected + mixed));
  });
}

export const FORMS = {
  EE: { name: "E·Eᵀ", about: "tied", params: (V, d) => V * d },
  EDE: { name: "E·diag(±1)·Eᵀ", about: "tied, half of the columns negated", params: (V, d) => V * d },
  EME: { name: "E·M·Eᵀ", about: "tied, with a d × d map", params: (V, d) => V * d + d * d },
  EMLPE: { name: "E·MLP·Eᵀ", about: "tied, with a small MLP", params: (V, d) => V * d + 4 * d * d },
  EW: { name: "E·Wᵀ", about: "untied", params: (V, d) => 2 * V * d },
};

// Seeded random generator (mulberry32) with normal draws.
export function randomness(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return (n, m, std) => map2(zeros(n, m), () => std * normal());
}

const sign = (j) => (j % 2 ? -1 : 1);
const relu = (A) => map2(A, (x) => Math.max(x, 0));
const plus = (A, B) => map2(A, (x, i, j) => x + B[i][j]);

function hidden(form, w) {
  if (form === "EDE") return map2(w.E, (x, _, j) => x * sign(j));
  if (form === "EME") return times(w.E, w.M);
  if (form === "EMLPE") return times(relu(times(w.E, w.A)), w.B);
  return w.E;
}

// Conditional entropy of the counts: the lowest loss of any bigram model on this text.
export function floor(counts) {
  const total = counts.flat().reduce((a, b) => a + b, 0);
  let nats = 0;
  for (const row of counts) {
    const sum = row.reduce((a, b) => a + b, 0);
    for (const n of row) if (n) nats -= n * Math.log(n / sum);
  }
  return nats / total;
}

// Loss of the unigram model: word frequencies only.
export function unigram(counts) {
  const columns = transpose(counts).map((row) => row.reduce((a, b) => a + b, 0));
  const total = columns.reduce((a, b) => a + b, 0);
  return columns.reduce((sum, n) => sum - (n ? (n / total) * Math.log(n / total) : 0), 0);
}

export class Fit {
  constructor(form, counts, dim, seed = 1) {
    const V = counts.length;
    const normal = randomness(seed);
    this.form = form;
    this.counts = counts;
    this.total = counts.flat().reduce((a, b) => a + b, 0);
    this.sums = counts.map((row) => row.reduce((a, b) => a + b, 0));
    this.step = 0;
    const w = { E: normal(V, dim, 0.5 / Math.sqrt(dim)) };
    if (form === "EME") w.M = normal(dim, dim, dim ** -0.5);
    if (form === "EMLPE") Object.assign(w, { A: normal(dim, 2 * dim, dim ** -0.5), B: normal(2 * dim, dim, (2 * dim) ** -0.5) });
    if (form === "EW") w.W = normal(V, dim, 0.5 / Math.sqrt(dim));
    this.weights = w;
    this.moments = Object.fromEntries(Object.entries(w).map(([key, A]) => [key, [zeros(A.length, A[0].length), zeros(A.length, A[0].length)]]));
  }

  logits() {
    return timesT(hidden(this.form, this.weights), this.weights.W ?? this.weights.E);
  }

  probabilities() {
    return this.logits().map(softmax);
  }

  // Mean cross-entropy in nats per pair.
  loss() {
    const p = this.probabilities();
    let nats = 0;
    this.counts.forEach((row, i) => row.forEach((n, j) => { if (n) nats -= n * Math.log(Math.max(p[i][j], 1e-300)); }));
    return nats / this.total;
  }

  gradients() {
    const { form, weights: w } = this;
    const H = hidden(form, w);
    const W = w.W ?? w.E;
    const p = timesT(H, W).map(softmax);
    const dZ = map2(p, (x, i, j) => (x * this.sums[i] - this.counts[i][j]) / this.total);
    const dH = times(dZ, W);
    const dW = times(transpose(dZ), H);
    if (form === "EW") return { E: dH, W: dW };
    if (form === "EE") return { E: plus(dH, dW) };
    if (form === "EDE") return { E: plus(map2(dH, (x, _, j) => x * sign(j)), dW) };
    if (form === "EME") return { E: plus(timesT(dH, w.M), dW), M: times(transpose(w.E), dH) };
    const inner = relu(times(w.E, w.A));
    const dInner = map2(timesT(dH, w.B), (x, i, j) => (inner[i][j] > 0 ? x : 0));
    return { E: plus(timesT(dInner, w.A), dW), A: times(transpose(w.E), dInner), B: times(transpose(inner), dH) };
  }

  // One step of Adam on all counts; `of` steps in total, the learning rate decays to 0.
  advance(of) {
    this.step++;
    const rate = 0.05 * Math.min(1, this.step / 20) * (1 - this.step / (of + 1));
    const scale = (rate * Math.sqrt(1 - 0.99 ** this.step)) / (1 - 0.9 ** this.step);
    for (const [key, G] of Object.entries(this.gradients())) {
      const A = this.weights[key];
      const [first, second] = this.moments[key];
      for (let i = 0; i < A.length; i++) {
        for (let j = 0; j < A[0].length; j++) {
          const g = G[i][j];
          first[i][j] += 0.1 * (g - first[i][j]);
          second[i][j] += 0.01 * (g * g - second[i][j]);
          A[i][j] -= (scale * first[i][j]) / (Math.sqrt(second[i][j]) + 1e-12);
        }
      }
    }
  }
}
