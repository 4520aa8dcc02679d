"""Matrices that a quantiser stored in parts: what they are (packed.py)."""
