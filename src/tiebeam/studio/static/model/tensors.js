// All tensors of a model, folded until asked for.
import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { grouped, humanBytes } from "../lib/numbers.js";
import { dataTable, tableRow } from "../lib/table.js";

const COLUMNS = ["name", "shape", "type", "size"];

export function tensors(model) {
  const body = h("tbody");
  const filter = h("input", { id: "filter", type: "text", autocomplete: "off", spellcheck: "false" });
  const more = h("p", { class: "note" });
  let all = null;
  const draw = () => {
    const wanted = all.filter((t) => t.name.toLowerCase().includes(filter.value.toLowerCase()));
    body.replaceChildren(...wanted.slice(0, 300).map((t) => tableRow(COLUMNS, [h("span", { class: "mono" }, t.role ? h("strong", null, t.name, ` · ${t.role}`) : t.name), t.shape.map(grouped).join(" × "), t.dtype, humanBytes(t.bytes)])));
    more.textContent = `${grouped(wanted.length)} of ${grouped(all.length)} tensors${wanted.length > 300 ? "; the first 300 are shown" : ""}.`;
  };
  filter.addEventListener("input", () => all && draw());
  const details = h("details", null, h("summary", null, "Show tensors"), h("div", { class: "stack play" }, h("div", { class: "field" }, h("label", { for: "filter" }, "Filter by name"), filter), more,
    dataTable("Tensors", COLUMNS, [], { body })));
  details.addEventListener("toggle", async () => {
    if (all || !details.open) return;
    try {
      ({ tensors: all } = await get(`api/models/${model.id}/tensors`));
      draw();
    } catch (error) {
      more.textContent = error.message;
    }
  });
  return h("section", { class: "panel stack", "aria-labelledby": "tensors" }, h("h2", { id: "tensors" }, "Tensors"), details);
}
