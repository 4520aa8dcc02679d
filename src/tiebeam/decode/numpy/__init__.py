"""The NumPy engine: read a config and weights, run the layers, cache keys and values. Start at `decoder.py`."""
