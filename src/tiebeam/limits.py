"""Every limit on what a reader believes of a file, in one place.

A length, count or size that comes from a file is compared with one of these before it is used: before memory is
reserved, a loop is started or numbers are multiplied. Each is far above what real models have; the largest seen is
named where it is known. docs/reliability.md says how the limits are tested.
"""

from __future__ import annotations

# Tensors of any format
MAX_DIMENSION = 1 << 48  # of one dimension, and of the product of all that are not 0; 281 trillion elements
MAX_DIMENSIONS = 32  # NumPy's limit before version 2 (64 since)
