// Two matrices become one: the opening figure. Scrolling moves the LM head onto the embedding; the button does the same.
import { h, media, s } from "../../lib/dom.js";

const [ROWS, COLUMNS, CELL, APART] = [7, 5, 26, 250];

function matrix(name, label, value) {
  const cells = [];
  for (let i = 0; i < ROWS; i++) {
    for (let j = 0; j < COLUMNS; j++) cells.push(s("rect", { class: "cell", x: j * CELL, y: i * CELL, width: CELL - 3, height: CELL - 3, rx: 4, "fill-opacity": value(i, j) }));
  }
  return s("g", { class: `hero-matrix ${name}` }, cells, s("text", { class: "hero-label", x: (COLUMNS * CELL) / 2, y: ROWS * CELL + 24, "text-anchor": "middle" }, label));
}

const shade = (seed) => (i, j) => (0.25 + 0.7 * Math.abs(Math.sin(seed + 12.9898 * i + 78.233 * j))).toFixed(2);

export function hero() {
  const embedding = matrix("tied", "embedding", shade(1));
  const head = matrix("untied", "LM head", shade(4));
  const one = s("text", { class: "hero-label hero-one", x: (COLUMNS * CELL) / 2 + APART / 2, y: ROWS * CELL + 24, "text-anchor": "middle" }, "one matrix, both uses");
  const text = s("text", { class: "hero-word", x: -16, y: 3.5 * CELL, "text-anchor": "end" }, "token");
  const out = s("text", { class: "hero-word", x: APART + COLUMNS * CELL + 16, y: 3.5 * CELL }, "logits");
  const picture = s("svg", { class: "chart hero-figure", viewBox: `-80 -10 ${APART + COLUMNS * CELL + 160} ${ROWS * CELL + 50}`, role: "img",
    "aria-label": "An embedding of V by D numbers and an LM head of V by D numbers; tied, they are one matrix." }, embedding, head, one, text, out);
  const count = h("p", { class: "hero-count", role: "status" });
  const button = h("button", { type: "button", class: "first", onclick: () => { chosen = !(position > 0.5); place(chosen ? 1 : 0); } });
  const still = media("(prefers-reduced-motion: reduce)");
  let chosen = null; // what the button was set to; until then scrolling decides
  let position = -1;

  function place(next) {
    if (next === position) return;
    position = next;
    picture.style.setProperty("--tie", String(next));
    embedding.setAttribute("transform", `translate(${(APART / 2) * next} 0)`);
    head.setAttribute("transform", `translate(${APART - (APART / 2) * next} 0)`);
    const tied = next > 0.5;
    button.textContent = tied ? "Untie them" : "Tie them";
    count.textContent = tied ? "V × D numbers: tied" : "V × D + V × D numbers: untied";
  }
  place(0);
  if (!still.matches) {
    const follow = () => {
      if (chosen !== null || !picture.isConnected) return;
      const box = picture.getBoundingClientRect();
      const passed = (window.innerHeight * 0.42 - box.top) / (window.innerHeight * 0.4);
      place(Math.max(0, Math.min(1, passed)));
    };
    window.addEventListener("scroll", follow, { passive: true });
  }
  return h("figure", { class: "hero-stage" }, picture, h("figcaption", { class: "row" }, button, count));
}
