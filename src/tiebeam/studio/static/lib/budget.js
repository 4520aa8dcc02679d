// Cost of embedding and LM head, tied and untied: the arithmetic of tiebeam.budget on BigInt.
import { ratio } from "./numbers.js";

export const SIZES = { "1B": 10n ** 9n, "7B": 7n * 10n ** 9n, "70B": 70n * 10n ** 9n };

export function price(vocab, dim, trunk = null) {
  if (vocab < 1n) throw new RangeError(`the vocabulary is ${vocab} tokens; it needs at least 1`);
  if (dim < 1n) throw new RangeError(`the width is ${dim}; it needs at least 1`);
  const matrix = vocab * dim;
  const tied = trunk === null ? null : trunk + matrix;
  const untied = trunk === null ? null : trunk + 2n * matrix;
  return {
    vocab, dim, trunk, matrix,
    saved: matrix,
    tied_total: tied,
    untied_total: untied,
    head_share: untied === null ? null : ratio(matrix, untied),
    bytes: { fp32: 4n * matrix, bf16: 2n * matrix, int8: matrix },
    optimizer_bytes: 8n * matrix, // Adam: two fp32 moments
  };
}

// Share of one matrix in a model of `total` parameters that includes both; null if they do not fit.
export function shareWithin(matrix, total) {
  return 2n * matrix > total ? null : ratio(matrix, total);
}

export const within = (matrix) => Object.fromEntries(Object.entries(SIZES).map(([name, total]) => [name, shareWithin(matrix, total)]));
