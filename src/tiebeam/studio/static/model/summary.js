// The top of a model's page: name and verdict, the four vocabulary numbers, findings with commands, the budget.
import { shareBars } from "../lib/bars.js";
import { command } from "../lib/command.js";
import { h, prose, swatch } from "../lib/dom.js";
import { grouped, human, humanBytes, percent } from "../lib/numbers.js";
import { dataTable } from "../lib/table.js";

const CONTEXT = 8192;
const fact = (name, value, more, off = false) => h("div", { class: off ? "off" : null }, h("dt", null, name), h("dd", null, value, more ? h("small", null, more) : null));
const count = (n) => (n === null ? "–" : grouped(n));

export function verdict(report) {
  const one = ["shared", "twin", "swapped"].includes(report.tie);
  const declared = report.declared === null ? "nothing" : report.declared ? "tied" : "untied";
  return h("section", { class: "panel stack", "aria-labelledby": "tie" },
    h("h2", { id: "name" }, report.name),
    h("p", { class: "lead", id: "tie" }, swatch(one), h("strong", null, report.tie), `: ${report.meaning}.`),
    h("p", { class: "quiet small row" }, severityPill(report), `${report.architecture ?? "unknown architecture"} · ${report.format} · ${humanBytes(report.bytes)}`),
    h("dl", { class: "facts" },
      fact("Declared", declared, report.declared_by),
      fact("Stored", report.stored.length ? report.stored.map((role) => (role === "embed" ? "embedding" : "LM head")).join(" and ") : "neither", [report.embed, report.head].filter(Boolean).map((m) => `${m.name} ${m.shape.map(grouped).join(" × ")} ${m.dtype}`).join("; ")),
      fact("Equal", report.equal === null ? "–" : report.equal ? "yes" : "no", report.equal === null ? "one matrix: nothing to compare" : "values of the two matrices")),
    report.notes.map((note) => h("p", { class: "note" }, note)));
}

// One scale for page and doctor: the worst severity and how many findings have it. Notes leave a model healthy.
function severityPill({ findings, healthy }) {
  const worst = ["error", "warning", "note"].find((severity) => findings.some((finding) => finding.severity === severity));
  if (!worst) return healthy ? h("span", { class: "pill quiet" }, "healthy") : null;
  const found = findings.filter((finding) => finding.severity === worst).length;
  return h("span", { class: `pill ${worst}` }, `${healthy ? "healthy, " : ""}${found} ${worst}${found === 1 ? "" : "s"}`);
}

export function vocabulary({ vocabulary: numbers }) {
  if (!numbers) return null;
  const four = [["Tokenizer ids", numbers.tokenizer_ids], ["vocab_size", numbers.vocab_size], ["Embedding rows", numbers.embed_rows], ["LM head rows", numbers.head_rows]];
  const known = four.map(([, n]) => n).filter((n) => n !== null);
  const agree = new Set(known).size <= 1;
  const rows = Math.max(...known);
  return h("section", { class: "panel stack", "aria-labelledby": "vocabulary" }, h("h2", { id: "vocabulary" }, "Vocabulary"),
    h("dl", { class: "facts" }, four.map(([name, n]) => fact(name, count(n), null, n !== null && n !== rows))),
    h("p", { class: "note" }, agree ? (known.length === 4 ? "All four agree." : "Those that are known agree.") : numbers.padding_rows ? `${grouped(numbers.padding_rows)} rows are padding: no token has them.` : "They do not all agree."));
}

export function findings(report) {
  const order = ["error", "warning", "note"];
  const sorted = [...report.findings].sort((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity));
  return h("section", { class: "panel stack", "aria-labelledby": "doctor" }, h("h2", { id: "doctor" }, "Findings"),
    sorted.length ? sorted.map((finding) => h("article", null,
      h("h3", null, h("span", { class: `pill ${finding.severity}` }, `${finding.code} ${finding.severity}`)), h("p", null, h("strong", null, finding.title)),
      h("p", { class: "small mono" }, finding.evidence), h("p", { class: "small" }, prose(finding.cause)), h("p", { class: "small" }, h("strong", null, "Fix: "), prose(finding.fix)),
      finding.commands.map(command))) : h("p", null, "Healthy: no findings."),
    h("details", null, h("summary", null, "What each loader does"), dataTable("Loaders", ["loader", "does", "because"], report.loaders.map((loader) => [loader.loader, loader.outcome, loader.reason].map((value) => (value === null ? "–" : prose(String(value))))), { words: true })));
}

export function budget(report) {
  if (report.tie === "none") return null;
  const { params, memory } = report;
  const own = report.stored.length === 1 && report.tie !== "headless" ? true : ["untied", "torn", "headless"].includes(report.tie) ? false : null;
  return h("section", { class: "panel stack", "aria-labelledby": "budget" }, h("h2", { id: "budget" }, "Size"),
    shareBars(BigInt(params.trunk), BigInt(params.saved_by_tying), own),
    h("p", { class: "note" }, `The LM head is ${percent(params.head_share)} of the untied model.`),
    h("dl", { class: "facts" },
      fact("Parameters", human(params.total), grouped(params.total)),
      fact("In float32", humanBytes(memory.float32), "what generating here needs"),
      fact("KV cache", memory.kv_cache_per_token === null ? "–" : humanBytes(memory.kv_cache_per_token * CONTEXT), memory.kv_cache_per_token === null ? "not known for this architecture" : `at ${grouped(CONTEXT)} tokens in bf16; ${humanBytes(memory.kv_cache_per_token)} per token`),
      fact("Logits", memory.logits_per_token === null ? "–" : humanBytes(memory.logits_per_token * CONTEXT), `of ${grouped(CONTEXT)} tokens at once in float32`)));
}
