// A matrix that is read cell by cell, by pointer and by keyboard: for numbers that have no room in their cells.
import { h } from "./dom.js";
import { grid } from "./grid.js";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// values: a square matrix. read(i, j) is called for the chosen cell; the cell of the reversed pair is marked too.
// Returns {element, choose(i, j)}; the other options are those of grid().
export function heatmap(values, { names, caption, read, ...options }) {
  const table = grid(values, { small: true, fit: true, rows: names, columns: names, caption, format: () => "", ...options }).element;
  const cells = [...table.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td")]);
  let at = [0, 0];
  function choose(i, j) {
    for (const [place, name] of [[at, "at"], [[at[1], at[0]], "mirror"]]) cells[place[0]][place[1]].classList.remove(name);
    at = [i, j];
    cells[j][i].classList.add("mirror");
    cells[i][j].classList.add("at");
    read(i, j);
  }
  function key(event) {
    const end = { Home: 0, End: names.length - 1 }[event.key];
    const move = MOVES[event.key];
    if ((!move && end === undefined) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const [i, j] = move ? [at[0] + move[0], at[1] + move[1]] : [at[0], end];
    choose(Math.max(0, Math.min(names.length - 1, i)), Math.max(0, Math.min(names.length - 1, j)));
  }
  function point(event) {
    const i = cells.findIndex((row) => row.includes(event.target));
    if (i >= 0) choose(i, cells[i].indexOf(event.target));
  }
  const element = h("div", { class: "heatmap", tabindex: "0", role: "group", "aria-label": `${caption}. Arrow keys move from cell to cell`, onkeydown: key, onpointerover: point, onpointerdown: point }, table);
  return { element, choose };
}
