// A matrix as a coloured table, optionally editable.
import { h, scroller } from "./dom.js";
import { signed } from "./numbers.js";

const written = (x) => String(+x.toFixed(2));

// values: rows of numbers. options: caption, or label where the caption stands elsewhere; rows, columns (names), digits,
// scale (|value| of full colour), edit(i, j, value), small (narrow cells, rotated names), fit (cells shrink to the width
// there is), blank (empty cell for 0), on(i, j), rowOn.
export function grid(values, options = {}) {
  let shown = values;
  const body = h("tbody");
  const table = h("table", { class: `grid${options.small ? " small turned" : ""}${options.fit ? " fit" : ""}` });
  if (options.label) table.setAttribute("aria-label", options.label);
  if (options.caption) table.append(h("caption", null, options.caption));
  if (options.columns) {
    const corner = options.rows ? [h("td", { class: "corner", "aria-hidden": "true", style: { background: "none" } })] : [];
    table.append(h("thead", null, h("tr", null, corner, options.columns.map((name) => h("th", { scope: "col" }, h("span", null, name))))));
  }
  table.append(body);
  const cells = values.map((row, i) => {
    const line = h("tr", null, options.rows ? h("th", { scope: "row" }, options.rows[i]) : null);
    body.append(line);
    return row.map((x, j) => {
      const cell = h("td");
      if (options.edit) {
        const at = `${options.rows?.[i] ?? `row ${i + 1}`}, ${options.columns?.[j] ?? `column ${j + 1}`}`;
        cell.append(h("input", {
          type: "number", step: "0.1", value: written(x), "aria-label": `${options.name ?? "value"} of ${at}`,
          oninput: (event) => {
            const typed = event.target.value; // "" while only a sign is typed
            const value = Math.max(-99, Math.min(99, Number(typed)));
            if (typed !== "" && Number.isFinite(value)) options.edit(i, j, value);
          },
          onchange: (event) => { event.target.value = written(shown[i][j]); },
        }));
      }
      line.append(cell);
      return cell;
    });
  });

  // An input that has the focus keeps what is typed in it.
  function update(next, more = {}) {
    shown = next;
    const now = { ...options, ...more };
    if (table.caption && table.caption.textContent !== now.caption) table.caption.textContent = now.caption;
    const scale = now.scale ?? Math.max(1e-9, ...next.flat().map(Math.abs));
    next.forEach((row, i) => {
      const line = body.children[i];
      line.className = now.rowOn === i ? "on" : "";
      row.forEach((x, j) => {
        const cell = cells[i][j];
        cell.className = `${x > 0 ? "plus" : x < 0 ? "minus" : ""}${now.on?.(i, j) ? " on" : ""}`;
        cell.style.setProperty("--v", String(Math.min(1, Math.abs(x) / scale) * 52));
        if (cell.firstChild instanceof HTMLInputElement) {
          if (document.activeElement !== cell.firstChild) cell.firstChild.value = written(x);
        } else cell.textContent = now.blank && Math.abs(x) < (now.blank === true ? 1e-9 : now.blank) ? "" : now.format ? now.format(x) : signed(x, now.digits ?? 2);
      });
    });
  }
  update(values);
  return { element: scroller(options.caption ?? options.label ?? "Matrix", table), update };
}
