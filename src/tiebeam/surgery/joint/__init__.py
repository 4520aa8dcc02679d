"""One table for two different matrices: S [V, R] seen through two small maps, A for the lookup and B for the head.

With E, W [V, D] the two matrices, find E ~ S A and W ~ S B. What an error costs tells how to measure it:

- the lookup of token v is wrong by e_v - s_v A, as often as v is read: weigh row v by how often, w_v;
- the logit of token v is wrong by (w_v - s_v B) . h. Over the hidden states h that the head really sees, the mean
  square of that is (w_v - s_v B) C (w_v - s_v B)^T with C = mean of h h^T: measure the head's rows in the metric C.
  To second order the loss grows by half of this, weighted by how probable v is at h: w_v again.

So with one weight per row and a balance b between the two ends, minimise

    sum_v  w_v ( b^2 |e_v - s_v A|^2 + |(w_v - s_v B) C^1/2|^2 )

which is the best rank-R approximation of diag(w)^1/2 [b E | W C^1/2], a matrix V x 2D. Its right singular vectors
are eigenvectors of the Gram matrix, [2D, 2D]:

    G = [ b^2 E'wE      b E'wW C^1/2 ]        G Q = Q diag(l),   Q = [Q1; Q2] the R largest
        [   ...      C^1/2 W'wW C^1/2 ]

    S = b E Q1 + W C^1/2 Q2      A = Q1' / b      B = Q2' C^-1/2

The weights enter G alone: S is a projection of every row, seen or not. G needs E'wE, E'wW and W'wW, three D x D sums
over rows that one pass in blocks collects; balance and metric are applied to the sums. The energy in the discarded
eigenvalues is the weighted error itself. At R = 2D nothing is discarded and the result is exact.
"""

from tiebeam.surgery.joint.calibration import Calibration, calibrate
from tiebeam.surgery.joint.decomposition import Factors, Moments, Spectrum, factors_of, moments_of
from tiebeam.surgery.joint.fit import Fit, Recipe, fit
from tiebeam.surgery.joint.joint_plan import plan_expand, plan_joint
from tiebeam.surgery.joint.joint_tie import Joining, join

__all__ = [
    "Calibration",
    "Factors",
    "Fit",
    "Joining",
    "Moments",
    "Recipe",
    "Spectrum",
    "calibrate",
    "factors_of",
    "fit",
    "join",
    "moments_of",
    "plan_expand",
    "plan_joint",
]
