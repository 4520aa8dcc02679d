// From the records of runs to the curves of the Runs view.
import { visible } from "./visible.js";

// Held-out values by the set they were measured on. The number of tokens tells sets apart: a run checks on a part of the
// held-out text, and older runs measured the whole of it at the end. Values of two sets never share a curve.
export function heldOut(records) {
  const sets = new Map();
  for (const record of records) {
    if (!Number.isFinite(record.val_bpb)) continue;
    const set = record.val_tokens ?? null;
    if (!sets.has(set)) sets.set(set, []);
    sets.get(set).push(record);
  }
  const found = [...sets.values()].sort((a, b) => b.length - a.length);
  return { curve: found[0] ?? [], others: found.slice(1).map((values) => values.at(-1)) };
}

const TONES = { true: "--tied", false: "--untied", null: "--soft" };

// A colour for each run: blue is tied, orange untied; further runs of one kind are darker (lighter on a dark page).
export function colours(runs) {
  const found = new Map();
  for (const tied of [true, false, null]) {
    const alike = runs.filter((run) => run.tied === tied);
    alike.forEach((run, i) => found.set(run.id, i ? `color-mix(in oklab, var(${TONES[tied]}) ${Math.round(100 - (55 * i) / Math.max(1, alike.length - 1))}%, var(--ink))` : `var(${TONES[tied]})`));
  }
  return found;
}

// Series of one metric for charts of ../curves/curves.js.
export function series(key, kept, colour) {
  return [...kept.values()].flatMap(({ run, records }) => {
    const style = { colour: colour.get(run.id), dash: run.tied === false ? "7 4" : null };
    const name = visible(run.name);
    const point = (record) => ({ y: record[key], step: record.step, seconds: record.seconds, tokens: record.tokens ?? (run.step_tokens ? record.step * run.step_tokens : undefined) });
    if (key !== "val_bpb") return [{ key: run.id, name, ...style, points: records.filter((record) => Number.isFinite(record[key])).map(point) }];
    const { curve, others } = heldOut(records);
    return [{ key: run.id, name, ...style, points: curve.map(point) },
      ...others.map((record) => ({ key: run.id, name: `${name}, on ${tokens(record.val_tokens)} held-out tokens`, ...style, line: false, points: [point(record)] }))];
  });
}

const tokens = (count) => (count === undefined ? "other" : String(count).replace(/\B(?=(\d{3})+$)/g, ","));
