// Tables of rows with a name. On a phone each row is a card: its name, then every value beside the name of its column.
import { h, scroller } from "./dom.js";

// One row: the first cell is its name. A cell is text, a node or a list of them.
export const tableRow = (columns, [name, ...cells]) => h("tr", null, h("th", { scope: "row" }, name), cells.map((cell, i) => h("td", { "data-column": columns[i + 1] }, cell)));

// `words`: cells hold sentences, which wrap and start at the left. `body` is given where rows come later.
export function dataTable(label, columns, rows, { words = false, body = h("tbody") } = {}) {
  body.append(...rows.map((row) => tableRow(columns, row)));
  return scroller(label, h("table", { class: `data stacking${words ? " words" : ""}` }, h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))), body));
}
