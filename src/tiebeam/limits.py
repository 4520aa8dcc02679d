"""Every limit on what a reader believes of a file, in one place.

A length, count or size that comes from a file is compared with one of these before it is used: before memory is
reserved, a loop is started or numbers are multiplied. Each is far above what real models have; where it is known, the
largest that was seen is named. docs/reliability.md says how the limits are tested.
"""

from __future__ import annotations

# Tensors of any format
MAX_DIMENSION = 1 << 48  # of one dimension, and of the product of those that are not 0: 281 trillion elements
MAX_DIMENSIONS = 32  # NumPy 1's limit

# JSON: config.json, index.json, the header of safetensors, ...
MAX_JSON = 64 << 20  # bytes; the index of a model with half a million tensors
MAX_JSON_VALUES = 4_000_000  # a few bytes of JSON can take a hundred bytes of memory
MAX_TOKENIZER = 256 << 20  # bytes of tokenizer.json; the largest in use has some 35 MB
MAX_REMOTE_TOKENIZER = 24 << 20  # a larger one on the Hub is not downloaded for a count
MAX_SHARDS = 100_000  # that an index or a file name speaks of

# safetensors
MAX_SAFETENSORS_HEADER = 100_000_000  # bytes; the limit of the format

# GGUF. Real headers stay far below: a vocabulary of 260,000 with its merges takes 15 MB.
MAX_GGUF_HEADER = 256 << 20  # bytes
MAX_GGUF_TEXT = 64 << 20  # bytes of one text value
MAX_GGUF_KEY = 65_535  # bytes; the limit of the format
MAX_GGUF_KEYS = 100_000
MAX_GGUF_NAME = 63  # bytes of a tensor's name: ggml has 64 with the final NUL
MAX_GGUF_DIMENSIONS = 4  # ggml's
MAX_GGUF_TENSORS = 1_000_000
MAX_GGUF_ARRAY = 1 << 24  # values of one array
MAX_GGUF_NESTING = 4  # arrays in arrays

# Small files inside a model
MAX_LFS_POINTER = 1024  # a pointer has three short lines
MAX_QUANT_STATE = 4096  # bytes of the JSON that bitsandbytes stores as a tensor
