// Linear algebra on small dense matrices (arrays of rows), for the lesson.
export const zeros = (n, m) => Array.from({ length: n }, () => new Array(m).fill(0));
export const transpose = (A) => A[0].map((_, j) => A.map((row) => row[j]));
export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
export const timesT = (A, B) => A.map((a) => B.map((b) => dot(a, b))); // A.B^T
export const times = (A, B) => timesT(A, transpose(B));
export const energy = (A) => A.reduce((sum, row) => sum + dot(row, row), 0);
export const map2 = (A, f) => A.map((row, i) => row.map((x, j) => f(x, i, j)));

export function softmax(z) {
  const top = Math.max(...z);
  const e = z.map((x) => Math.exp(x - top));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((x) => x / sum);
}

export const symmetricPart = (A) => map2(A, (x, i, j) => (x + A[j][i]) / 2);

// Share of a matrix's energy (squared norm) in its antisymmetric part.
export function antisymmetricShare(A) {
  const all = energy(A);
  return all ? (all - energy(symmetricPart(A))) / all : 0;
}

// Eigenvalues of a symmetric matrix in descending order, by Jacobi rotations.
export function eigenvalues(S) {
  const A = S.map((row) => [...row]);
  const n = A.length;
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) off += A[p][q] ** 2;
    if (off < 1e-22 * (1 + energy(A))) break;
    for (let p = 0; p < n; p++) {
      for (let q = p + 1; q < n; q++) {
        if (A[p][q] === 0) continue;
        const theta = (A[q][q] - A[p][p]) / (2 * A[p][q]);
        const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
        const c = 1 / Math.sqrt(t * t + 1);
        const sn = t * c;
        for (let k = 0; k < n; k++) [A[k][p], A[k][q]] = [c * A[k][p] - sn * A[k][q], sn * A[k][p] + c * A[k][q]];
        for (let k = 0; k < n; k++) [A[p][k], A[q][k]] = [c * A[p][k] - sn * A[q][k], sn * A[p][k] + c * A[q][k]];
      }
    }
  }
  return A.map((row, i) => row[i]).sort((a, b) => b - a);
}

// Share of a symmetric matrix's energy in negative eigenvalues, which E.E^T cannot have.
export function negativeShare(values) {
  const all = values.reduce((sum, x) => sum + x * x, 0);
  return all ? values.filter((x) => x < 0).reduce((sum, x) => sum + x * x, 0) / all : 0;
}
