"""Joint tie: one table S [V, R] and two small maps A, B [R, D] in place of two different matrices E, W [V, D].

Find E ~ S A and W ~ S B. How much an error costs decides how to measure it:

- The embedding of token v is wrong by e_v - s_v A whenever v is read, so row v is weighted by its frequency w_v.
- The logit of token v is wrong by (w_v - s_v B) . h. Its mean square over the hidden states h of real text is
  (w_v - s_v B) C (w_v - s_v B)^T with C = mean of h h^T, so rows of the head are measured in the metric C. To second
  order the loss grows by half of this, weighted by the probability of v at h: again w_v.

With one weight per row and a balance b between embedding and head, minimise

    sum_v  w_v ( b^2 |e_v - s_v A|^2 + |(w_v - s_v B) C^1/2|^2 )

This is the best rank-R approximation of diag(w)^1/2 [b E | W C^1/2], a matrix V x 2D. Its right singular vectors are
the eigenvectors of the Gram matrix [2D, 2D]:

    G = [ b^2 E'wE      b E'wW C^1/2 ]        G Q = Q diag(l),   Q = [Q1; Q2] the R largest
        [   ...      C^1/2 W'wW C^1/2 ]

    S = b E Q1 + W C^1/2 Q2      A = Q1' / b      B = Q2' C^-1/2

The weights enter only G: S is a projection of every row, whether the text contains it or not. G needs E'wE, E'wW and
W'wW, three D x D sums over rows that one pass in blocks collects; balance and metric are applied to the sums. The
energy of the discarded eigenvalues is the weighted error itself. At R = 2D nothing is discarded: the result is exact.

For the most frequent tokens the embedding is stored beside the table. Their rows leave the sums, and there the table
serves the head alone: s_v is the s with the least |(w_v - s B) C^1/2|, which is 0 where B is invertible (R >= D). So
both matrices are exact at these rows, and the table's errors are left to the rare ones.
"""

from tiebeam.surgery.joint.calibration import Calibration, calibrate
from tiebeam.surgery.joint.decomposition import Factors, Moments, Spectrum, factors_of, moments_of
from tiebeam.surgery.joint.fit import Fit, Recipe, fit
from tiebeam.surgery.joint.joint_plan import plan_expand, plan_joint
from tiebeam.surgery.joint.joint_tie import JointFit, fit_joint

__all__ = [
    "Calibration",
    "Factors",
    "Fit",
    "JointFit",
    "Moments",
    "Recipe",
    "Spectrum",
    "calibrate",
    "factors_of",
    "fit",
    "fit_joint",
    "moments_of",
    "plan_expand",
    "plan_joint",
]
