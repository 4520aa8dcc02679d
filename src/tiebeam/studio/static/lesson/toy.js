// Toy embedding of the first chapters: six words of width 3. Editing a number updates every figure.
import { map2 } from "../lib/linalg.js";

export const WORDS = ["New", "York", "City", "San", "Francisco", "Los"];
const START = [
  [1.2, 0.3, -0.5],
  [0.4, 1.1, 0.2],
  [-0.3, 0.9, 0.8],
  [0.9, -0.7, 0.1],
  [0.1, -0.4, 1.3],
  [0.7, -0.6, -0.9],
];

export const toy = { E: map2(START, (x) => x), word: 0, listeners: new Set() };

export function changed() {
  for (const tell of toy.listeners) tell();
}

export const EXPLORER_WORDS = ["New", "York", "City", "is"];
