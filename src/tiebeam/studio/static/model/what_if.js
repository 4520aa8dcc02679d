// What-if: sliders for rows and bits show the size at once; a click measures the cost on the reader's text.
import { command } from "../lib/command.js";
import { freshId, h } from "../lib/dom.js";
import { jobButton } from "../lib/job.js";
import { grouped, humanBytes, percent, signed } from "../lib/numbers.js";
import { dataTable } from "../lib/table.js";

const BITS = [16, 8, 6, 5, 4, 3]; // after those of the model as it is

export function whatIf(model, report) {
  const matrix = report.embed ?? report.head;
  const [rowsNow, dim] = matrix.shape;
  const copies = report.stored.length === 2 && report.tie !== "shared" ? 2 : 1;
  const now = (report.embed?.bytes ?? 0) + (copies === 2 || !report.embed ? report.head?.bytes ?? 0 : 0);
  const ownBits = (8 * now) / (copies * rowsNow * dim); // with the scales of quantized blocks
  const widths = [ownBits, ...BITS.filter((one) => one < ownBits)];
  const [rowsId, bitsId, textId] = ["rows", "bits", "text"].map(freshId);
  const [rowsOut, bitsOut, size] = [h("output", { for: rowsId }), h("output", { for: bitsId }), h("p", { role: "status" })];
  const steps = 100;
  const rows = h("input", { id: rowsId, type: "range", min: 1, max: steps, value: steps, oninput: () => draw() });
  const bits = h("input", { id: bitsId, type: "range", min: 0, max: widths.length - 1, value: 0, oninput: () => draw() });
  const text = h("textarea", { id: textId, rows: 4, spellcheck: "false", placeholder: "Paste at least 2,000 characters of what the model will read." });
  const kept = () => Math.max(1, Math.round((rowsNow * Number(rows.value)) / steps));
  function draw() {
    const width = widths[Number(bits.value)];
    rowsOut.textContent = `${grouped(kept())} of ${grouped(rowsNow)}`;
    bitsOut.textContent = width === ownBits ? `${+ownBits.toFixed(2)} bits, as it is` : `${width} bits`;
    const bytes = Math.round((copies * kept() * dim * width) / 8);
    const change = bytes < now ? ` instead of ${humanBytes(now)}, ${percent(1 - bytes / now)} less` : "";
    const scales = width === ownBits ? "" : " Scales of quantized blocks are not counted.";
    size.textContent = `Embedding and LM head: ${humanBytes(bytes)}${change}.${scales}`;
  }
  const body = (more) => () => ({ method: "POST", body: { text: text.value, ...more() } });
  const trim = jobButton("Measure these rows", () => `api/models/${model.id}/what-if`, trimmed, body(() => ({ rows: kept() })));
  const quantize = jobButton("Measure all precisions", () => `api/models/${model.id}/what-if`, quantized, body(() => ({})));
  draw();
  return h("section", { class: "panel stack", "aria-labelledby": "whatif" }, h("h2", { id: "whatif" }, "What if it were smaller?"),
    h("div", { class: "columns" },
      h("div", { class: "field" }, h("label", { for: rowsId }, "Rows: ", rowsOut), rows),
      h("div", { class: "field" }, h("label", { for: bitsId }, "Precision: ", bitsOut), bits)),
    size,
    h("div", { class: "field" }, h("label", { for: textId }, "Your text, to measure the cost on"), text),
    h("div", { class: "columns" }, trim.element, quantize.element));
}

function trimmed({ rows, ladder, commands }) {
  const [before, after] = [ladder.rungs[0], ladder.rungs.find((rung) => rung.rows === rows)];
  const bits = (rung) => (rung.bits_per_byte === null ? "–" : rung.bits_per_byte.toFixed(4));
  return [
    h("p", null, `${grouped(rows)} rows: ${humanBytes(after.bytes_saved)} less.`, after.bits_per_byte === null ? "" : ` Bits per byte ${bits(before)} → ${bits(after)} (${signed(100 * (after.bits_per_byte / before.bits_per_byte - 1))}%).`),
    ladder.why_not_measured ? h("p", { class: "note" }, ladder.why_not_measured) : "",
    ...commands.map(command),
  ];
}

function quantized({ costs, commands }) {
  const rows = costs.costs.filter((cost) => cost.which === "both");
  return [
    dataTable("Precisions", ["both", "rounding", "size", "nats", "± 95%", "KL", "same next token"],
      rows.map((cost) => [cost.head.precision, cost.rounding, humanBytes(cost.bytes), signed(cost.nats.change, 4), (cost.nats.high - cost.nats.change).toFixed(4), cost.kl.toFixed(4), percent(cost.same_next_token)])),
    ...costs.notes.map((note) => h("p", { class: "note" }, note)),
    commands.length ? "" : h("p", { class: "note" }, `Nothing that GGUF can store costs less than ${costs.tolerance} nats per token.`),
    ...commands.map(command),
  ];
}
