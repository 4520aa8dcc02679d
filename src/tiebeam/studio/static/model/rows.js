// Rows of a model: search a token, see its norms and neighbours at both ends; list the rows that look untrained.
import { get } from "../lib/api.js";
import { hbars } from "../lib/bars.js";
import { freshId, h } from "../lib/dom.js";
import { jobButton } from "../lib/job.js";
import { grouped, signed } from "../lib/numbers.js";
import { dataTable } from "../lib/table.js";
import { shownToken } from "../lib/tokens.js";

const query = (text) => (/^[\d\s,]+$/.test(text) ? `ids=${encodeURIComponent(text)}` : `text=${encodeURIComponent(text)}`);

export function rows(model) {
  const id = freshId("token");
  const input = h("input", { id, type: "text", value: " the", autocomplete: "off", spellcheck: "false" });
  const out = h("div", { class: "stack", role: "status" });
  let bad = null;
  let shown = null; // the last answer of a search
  const draw = () => { if (shown) out.replaceChildren(...shown.tokens.slice(0, 6).map((token) => one(token, shown.tied, bad))); };
  const health = jobButton("Check every row", () => `api/models/${model.id}/rows`, (found) => { bad = found; draw(); return suspicious(found); });
  async function search(event) {
    event.preventDefault();
    out.replaceChildren(h("p", { class: "quiet" }, "Reading the rows …"));
    try {
      shown = await get(`api/models/${model.id}/neighbours?${query(input.value)}&k=6`);
      draw();
    } catch (error) {
      shown = null;
      out.replaceChildren(h("p", { class: "error" }, error.message));
    }
  }
  return h("section", { class: "panel stack", "aria-labelledby": "rows" }, h("h2", { id: "rows" }, "Rows"),
    h("form", { class: "row", onsubmit: search }, h("label", { for: id }, "Token text, or ids"), h("span", { style: { flex: "1 1 12rem" } }, input), h("button", { type: "submit" }, "Search")), out,
    h("p", { class: "quiet small" }, "Rows that hold nothing learned: NaN, zero, equal to others, fresh random numbers, the mean row. Reads both matrices once."), health.element);
}

function one(token, tied, bad) {
  const bars = (list, tone) => hbars(list.map((score) => ({ name: shownToken(score), value: score.score, label: signed(score.score, 3), tone })), { low: Math.min(0, ...list.map((score) => score.score)), high: 1 });
  const norms = Object.entries(token.norms).map(([end, norm]) => `${tied ? "norm" : `norm in the ${end === "embed" ? "embedding" : "LM head"}`} ${norm.toFixed(3)}`).join(", ");
  return h("div", null, h("h3", null, h("code", null, shownToken(token)), h("span", { class: "quiet tiny" }, ` id ${grouped(token.id)}`)),
    h("p", { class: "note" }, `${norms}. ${looks(token.id, bad)}`),
    h("div", { class: "columns" }, h("div", null, h("p", { class: "small" }, h("strong", null, tied ? "nearest rows, by cosine" : "nearest in the embedding, by cosine")), bars(token.embed, "tied")),
      token.head ? h("div", null, h("p", { class: "small" }, h("strong", null, "nearest in the LM head, by cosine")), bars(token.head, "untied")) : null));
}

function looks(id, bad) {
  if (!bad) return "Check every row to see whether it looks trained.";
  for (const matrix of bad.matrices) {
    const group = matrix.groups.find((one) => one.rows.some((row) => row.id === id));
    if (group) return `In the ${matrix.role === "embed" ? "embedding" : "LM head"} it is listed as ${group.kind}.`;
  }
  return "It looks trained.";
}

function suspicious(found) {
  const groups = found.matrices.flatMap((matrix) => matrix.groups.map((group) => [matrix, group]));
  return [
    ...found.skipped.map((why) => h("p", { class: "note" }, why)),
    groups.length ? dataTable("Suspicious rows", ["kind", "matrix", "rows", "tokens"], groups.map(([matrix, group]) => [group.kind, matrix.role === "embed" ? "embedding" : "LM head", grouped(group.count),
      [group.rows.slice(0, 12).map((row) => [h("code", null, shownToken(row)), " "]), group.count > 12 ? "…" : ""]]), { words: true }) : h("p", null, "Every row looks trained."),
  ];
}
