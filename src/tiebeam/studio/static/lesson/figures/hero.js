// Two matrices become one: the opening figure. A token goes through the embedding, the layers and the LM head. Scrolling
// moves both matrices into one; the button does the same.
import { h, media, s } from "../../lib/dom.js";
import { grouped, percent } from "../../lib/numbers.js";

const WORDS = ["New", "York", "City", "is", "the", "big", "town"];
const [ROW, COLUMNS] = [1, 5]; // the token that is read, and the width of the toy matrices
const NEXT = [0.03, 0.05, 0.61, 0.14, 0.07, 0.04, 0.06]; // a picture, not a result
const [V, D] = [49152, 576]; // SmolLM2 135M
const TWEEN = 700; // milliseconds

// Pixels of the drawing: cell size, left edges of both matrices, where they meet, and the longest bar.
const WIDE = { width: 960, cell: 26, ends: [170, 640], middle: 405, bar: 130, layers: [120, 46], font: 14 };
const NARROW = { width: 400, cell: 17, ends: [46, 226], middle: 136, bar: 64, layers: [84, 36], font: 13 };

const shades = (seed) => WORDS.flatMap((_, i) => Array.from({ length: COLUMNS }, (__, j) => 0.22 + 0.7 * Math.abs(Math.sin(seed + 12.9898 * i + 78.233 * j))));
const [EMBEDDING, HEAD] = [shades(1), shades(4)];
const between = (a, b, t) => a + (b - a) * t;

function matrix(name, { cell, font }) {
  const cells = WORDS.flatMap((_, i) => Array.from({ length: COLUMNS }, (__, j) => s("rect", { class: "cell", x: j * cell, y: i * cell, width: cell - 3, height: cell - 3, rx: 4 })));
  const words = WORDS.map((word, i) => s("text", { class: `hero-word${i === ROW && name === "tied" ? " on" : ""}`, x: -8, y: (i + 0.5) * cell + 3, "text-anchor": "end", style: { "font-size": `${font - 1}px` } }, word));
  return { group: s("g", { class: `hero-matrix ${name}` }, cells, words), cells };
}

function drawing(size) {
  const { width, cell, ends, middle, bar, layers, font } = size;
  const [tall, wide] = [WORDS.length * cell, COLUMNS * cell];
  const [top, floor] = [font + 16, font + 16 + tall];
  const [E, W] = [matrix("tied", size), matrix("untied", size)];
  E.cells.forEach((cell, k) => cell.setAttribute("fill-opacity", EMBEDDING[k].toFixed(3)));
  const title = (text, more = "") => s("text", { class: `hero-label ${more}`, y: font, "text-anchor": "middle", style: { "font-size": `${font}px` } }, text);
  const [embedding, head, one] = [title("embedding"), title("LM head"), title("one matrix, both uses", "hero-one")];
  const bars = NEXT.map((p, i) => s("rect", { class: "hero-bar", y: i * cell + cell * 0.22, height: cell * 0.45, width: 2 + (bar * p) / Math.max(...NEXT), rx: 2 }));
  const best = NEXT.indexOf(Math.max(...NEXT));
  const share = s("text", { class: "hero-word on", y: (best + 0.5) * cell + 3, style: { "font-size": `${font - 1}px` } }, percent(NEXT[best]));
  const logits = s("g", null, bars, width > 500 ? share : null);
  const picked = s("rect", { class: "hero-row", x: -2, y: ROW * cell - 2, width: wide + 1, height: cell + 1, rx: 5 });
  const row = s("g", null, picked);
  const box = { x: middle + wide / 2 - layers[0] / 2, y: floor + 56 };
  const stack = [2, 1, 0].map((n) => s("rect", { class: "hero-layer", x: box.x + 5 * n, y: box.y - 5 * n, width: layers[0], height: layers[1], rx: 7 }));
  const caption = s("text", { class: "hero-label", x: box.x + layers[0] / 2, y: box.y + layers[1] / 2 + 5, "text-anchor": "middle", style: { "font-size": `${font}px` } }, "layers");
  const [down, up] = ["down", "up"].map((name) => s("path", { class: `hero-flow ${name}`, "marker-end": "url(#hero-head)" }));
  const entry = width > 500 ? [s("path", { class: "hero-flow", "marker-end": "url(#hero-head)" }), s("text", { class: "hero-word on", y: top + (ROW + 0.5) * cell + 3, style: { "font-size": `${font}px` }, "text-anchor": "middle" }, "“York”")] : [];
  const marker = s("defs", null, s("marker", { id: "hero-head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { class: "hero-tip", d: "M0 0.5L8 4L0 7.5Z" })));
  const picture = s("svg", { class: "chart hero-figure", viewBox: `0 0 ${width} ${box.y + layers[1] + 8}`, role: "img",
    "aria-label": "The token York picks a row of the embedding; the layers turn it into a hidden state; the LM head compares that with every row. Untied, these are two matrices of V by D numbers; tied, they are one." },
    marker, stack, caption, down, up, entry, E.group, W.group, row, logits, embedding, head, one);

  function place(t) {
    const [e, w] = ends.map((end) => between(end, middle, t));
    E.group.setAttribute("transform", `translate(${e} ${top})`);
    W.group.setAttribute("transform", `translate(${w} ${top})`);
    row.setAttribute("transform", `translate(${e} ${top})`);
    logits.setAttribute("transform", `translate(${w + wide + 10} ${top})`);
    share.setAttribute("x", 8 + bar);
    embedding.setAttribute("x", e + wide / 2);
    head.setAttribute("x", w + wide / 2);
    one.setAttribute("x", middle + wide / 2);
    // the LM head takes over the numbers of the embedding while it moves
    W.cells.forEach((cell, k) => cell.setAttribute("fill-opacity", between(HEAD[k], EMBEDDING[k], t).toFixed(3)));
    const [inX, inY] = [between(box.x, box.x + layers[0] * 0.2, t), between(box.y + layers[1] / 2, box.y - 11, t)];
    const [outX, outY] = [between(box.x + layers[0] + 10, box.x + layers[0] * 0.8, t), between(box.y + layers[1] / 2, box.y - 11, t)];
    const [fromX, toX] = [between(e + wide / 2, e + wide * 0.2, t), between(w + wide / 2, w + wide * 0.8, t)];
    down.setAttribute("d", `M${fromX} ${floor + 3}C${fromX} ${between(inY, floor + 20, t)} ${fromX} ${between(inY, floor + 20, t)} ${inX - between(2, 0, t)} ${inY}`);
    up.setAttribute("d", `M${outX} ${outY}C${toX} ${between(outY, floor + 20, t)} ${toX} ${between(outY, floor + 20, t)} ${toX} ${floor + 4}`);
    entry[0]?.setAttribute("d", `M${e - 74} ${top + (ROW + 0.5) * cell - 2}H${e - 48}`);
    entry[1]?.setAttribute("x", e - 104);
    picture.style.setProperty("--tie", String(t));
  }
  return { picture, place };
}

export function hero() {
  const narrow = media("(max-width: 640px)");
  const still = media("(prefers-reduced-motion: reduce)");
  const stage = h("div");
  const count = h("p", { class: "hero-count", role: "status" });
  const button = h("button", { type: "button", class: "first", onclick: () => { chosen = !(goal > 0.5); move(chosen ? 1 : 0); } });
  let shown = null;
  let chosen = null; // what the button was set to; until then scrolling decides
  let position = 0;
  let goal = 0;
  let frame = 0;

  function place(t) {
    position = t;
    shown.place(t);
  }
  function tell(t) {
    const tied = t > 0.5;
    button.textContent = tied ? "Untie them" : "Tie them";
    const text = tied ? `Tied: V × D = ${grouped(V * D)} numbers` : `Untied: V × D + V × D = ${grouped(2 * V * D)} numbers`;
    if (count.textContent !== text) count.textContent = text;
  }
  function move(t) {
    goal = t;
    tell(t);
    cancelAnimationFrame(frame);
    if (still.matches) return place(t);
    const [from, began] = [position, performance.now()];
    const step = (now) => {
      const passed = Math.min(1, (now - began) / TWEEN);
      place(between(from, t, passed * passed * (3 - 2 * passed)));
      if (passed < 1) frame = requestAnimationFrame(step);
    };
    frame = requestAnimationFrame(step);
  }
  function draw() {
    shown = drawing(narrow.matches ? NARROW : WIDE);
    stage.replaceChildren(shown.picture);
    place(position);
  }
  narrow.addEventListener("change", draw);
  draw();
  tell(0);
  window.addEventListener("scroll", () => {
    if (chosen !== null || still.matches || !stage.isConnected) return;
    const passed = (window.innerHeight * 0.44 - stage.getBoundingClientRect().top) / (window.innerHeight * 0.34);
    goal = Math.max(0, Math.min(1, passed));
    tell(goal);
    place(goal);
  }, { passive: true });
  return h("figure", { class: "hero-stage" }, stage, h("figcaption", null, h("div", { class: "row" }, button, count),
    h("p", { class: "note" }, `V = ${grouped(V)} tokens and D = ${grouped(D)} columns, as in SmolLM2 135M. The matrices and bars are drawn small, and are not its numbers.`)));
}
