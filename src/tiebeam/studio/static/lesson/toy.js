// State of the toy figures. A figure can be on the page several times (one per step on a narrow screen), so what a
// reader edits lives here and every figure listens: six words of width 3, a hidden state, the text of the bigrams.
import { read, TEXT } from "../lib/bigrams.js";
import { map2 } from "../lib/linalg.js";

export const WORDS = ["New", "York", "City", "San", "Francisco", "Los"];
export const EXPLORER_WORDS = ["New", "York", "City", "is"];
const START = [
  [1.2, 0.3, -0.5],
  [0.4, 1.1, 0.2],
  [-0.3, 0.9, 0.8],
  [0.9, -0.7, 0.1],
  [0.1, -0.4, 1.3],
  [0.7, -0.6, -0.9],
];

export const toy = {
  E: map2(START, (x) => x),
  word: 0,
  hidden: [0.5, 1.0, 0.4],
  layers: { attention: { adds: [-0.6, 0.5, 0.3], on: true }, MLP: { adds: [-0.5, 0.4, -0.1], on: true } },
};
export const language = { text: TEXT, ...read(TEXT) };

const listeners = { toy: new Set(), language: new Set() };
const notify = (which) => { for (const tell of listeners[which]) tell(); };
export const changed = () => notify("toy");

// Draw now and after every change of the toy, or of the text.
export function redraw(draw, which = "toy") {
  listeners[which].add(draw);
  draw();
}

export function setText(text) {
  const next = read(text);
  if (next.vocabulary.length < 2 || next.vocabulary.length > 24) return `The text has ${next.vocabulary.length} different words; 2 to 24 make a readable table.`;
  Object.assign(language, { text, ...next });
  notify("language");
  return "";
}
