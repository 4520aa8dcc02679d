// Symmetry explorer: edit E and watch E·Eᵀ.
import { h } from "../../lib/dom.js";
import { grid } from "../../lib/grid.js";
import { dot, eigenvalues, map2, symmetricPart, timesT, zeros } from "../../lib/linalg.js";
import { signed } from "../../lib/numbers.js";
import { choices } from "../controls.js";
import { award } from "../progress.js";
import { EXPLORER_WORDS } from "../toy.js";

const FORMS = [["EE", "E·Eᵀ"], ["EDE", "E·diag(1,−1)·Eᵀ"], ["EME", "E·M·Eᵀ"], ["EW", "E·Wᵀ"]];

// What the numbers of a direct path say: symmetric or not, its diagonal, its eigenvalues. Also used for real models.
export function properties(Z, names) {
  const values = eigenvalues(symmetricPart(Z));
  const asymmetry = Math.max(...map2(Z, (x, i, j) => Math.abs(x - Z[j][i])).flat());
  const lowest = Math.min(...Z.map((row, i) => row[i]));
  const scale = Math.max(1, ...Z.flat().map(Math.abs));
  const negative = values.filter((x) => x < -1e-5 * scale).length;
  return {
    values,
    checks: [
      [asymmetry < 1e-5 * scale ? "Symmetric" : "Not symmetric", `${names[0]} → ${names[1]} ${signed(Z[0][1])}, ${names[1]} → ${names[0]} ${signed(Z[1][0])}; largest difference anywhere ${signed(asymmetry)}`],
      [lowest >= -1e-5 * scale ? "Diagonal is never negative" : "Negative diagonal", `lowest logit of a token after itself: ${signed(lowest)}`],
      [negative ? `${negative} negative eigenvalue${negative > 1 ? "s" : ""}` : "Positive semidefinite", negative ? "some directions lower the logits of similar tokens" : "similar tokens always raise each other’s logits"],
    ],
  };
}

export const checkList = (checks) => h("ul", { class: "checks" }, checks.map(([name, text]) => h("li", null, h("b", null, name), text)));

export function explorer() {
  const E = [[1.0, 0.4], [-0.6, 0.9], [0.3, -1.1], [0.8, 0.2]];
  const W = [[0.2, -0.9], [1.2, 0.1], [-0.5, 1.0], [0.1, -0.9]]; // New → York high, York → New low
  const M = [[0.2, 1.1], [-0.9, 0.3]];
  let form = "EE";
  const middle = { EE: (A) => A, EDE: (A) => map2(A, (x, _, j) => (j % 2 ? -x : x)), EME: (A) => A.map((row) => M[0].map((_, j) => dot(row, M.map((m) => m[j])))), EW: (A) => A };
  const editable = (A, name, rows) => grid(A, { rows, caption: `${name} (edit it)`, name, digits: 1, edit: (i, j, x) => { A[i][j] = x; award("edit:explorer", 5); draw(); } });
  const tables = { E: editable(E, "E", EXPLORER_WORDS), W: editable(W, "W", EXPLORER_WORDS), M: editable(M, "M") };
  const product = grid(zeros(4, 4), { rows: EXPLORER_WORDS, columns: EXPLORER_WORDS, caption: "the direct path" });
  const verdicts = h("div", { role: "status" });
  const pick = choices("The direct path is", FORMS, () => form, (value) => { form = value; award(`explorer:${value}`, 2); draw(); });
  const inputs = h("div", { class: "equation" }, Object.values(tables).map((table) => table.element), h("span", { class: "op", "aria-hidden": "true" }, "→"), product.element);
  function draw() {
    const Z = timesT(middle[form](E), form === "EW" ? W : E);
    for (const [name, values] of Object.entries({ E, W, M })) tables[name].update(values, { scale: 1.5 });
    tables.W.element.hidden = form !== "EW";
    tables.M.element.hidden = form !== "EME";
    product.update(Z, { on: (i, j) => i + j === 1 });
    const { values, checks } = properties(Z, EXPLORER_WORDS);
    verdicts.replaceChildren(checkList(checks), h("p", { class: "note" }, "Eigenvalues of the symmetric part:"),
      h("ul", { class: "eigen" }, values.map((x) => h("li", { class: x > 1e-9 ? "plus" : x < -1e-9 ? "minus" : "" }, (x > 1e-9 ? "+" : "") + signed(x)))));
  }
  draw();
  return { element: h("div", { class: "panel stack" }, pick, h("div", { class: "beside" }, inputs, verdicts)) };
}
