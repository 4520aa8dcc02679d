"""Every limit on what a reader believes of a file, in one place.

A length, count or size that comes from a file is compared with one of these before it is used: before memory is
reserved, a loop is started or numbers are multiplied. Each is far above what real models have; where it is known, the
largest that was seen is named. docs/reliability.md says how the limits are tested.
"""

from __future__ import annotations

# Tensors of any format
MAX_DIMENSION = 1 << 48  # of one dimension, and of the product of those that are not 0: 281 trillion elements
MAX_DIMENSIONS = 32  # NumPy 1's limit
MAX_NAME = 1024  # characters of a tensor's name in a pickle or an artifact, also of a class or a function

# JSON: config.json, index.json, the header of safetensors, ...
MAX_JSON = 64 << 20  # bytes; the index of a model with half a million tensors
MAX_JSON_VALUES = 4_000_000  # a few bytes of JSON can take a hundred bytes of memory
MAX_TOKENIZER = 256 << 20  # bytes of tokenizer.json; the largest in use has some 35 MB
MAX_REMOTE_TOKENIZER = 24 << 20  # a larger one on the Hub is not downloaded for a count
MAX_FILES = 200_000  # that a folder behind a URL lists
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

# Zip archives (PyTorch, npz). Python's zipfile takes about 1,000 bytes per member.
MAX_ZIP_DIRECTORY = 16 << 20  # bytes of the table of contents
MAX_ZIP_MEMBERS = 100_000
MAX_INFLATED_STRIDED = 40 << 20  # bytes of a compressed tensor that is not in row-major order, which is read whole
MAX_NPY_HEADER = 10_000  # bytes; NumPy's own limit

# Pickles (PyTorch zip and legacy, DCP metadata)
MAX_PICKLE = 48 << 20  # bytes; about 150 per tensor
MAX_PICKLE_OPS = 4_000_000  # instructions; about 35 per tensor
MAX_PICKLE_MEMORY = 136 << 20  # bytes of the pickle and of what it makes; about 1,200 per tensor
MAX_PICKLE_VISITS = 4_000_000  # entries visited in search of the model
MAX_TORCH_TENSORS = 150_000
MAX_REPEATED = 1 << 24  # elements of a view that repeats parts of its storage

# Distributed checkpoints
MAX_DCP_METADATA = 192 << 20  # bytes; about 150 per chunk, and a tensor has a chunk on every rank
MAX_DCP_METADATA_OPS = 80_000_000  # about 70 per chunk
MAX_DCP_METADATA_MEMORY = 168 << 20  # bytes, of all metadata files together; about 2,400 per chunk
DCP_MEMORY_PER_BYTE = 20  # a larger file may take this many times its size
MAX_CHUNKS = 1_000_000  # 700 tensors on 1,024 ranks

# Packed runs (.tbp). Trained weights compress less than twofold.
MAX_ARTIFACT_HEADER = 16 << 20  # bytes; config, tokenizer and model card are in it
MAX_ARTIFACT_BODY = 8 << 30  # bytes, inflated
MAX_ARTIFACT_RATIO = 20  # inflated to compressed size, of a body above ...
MAX_ZEROS_IN_ARTIFACT = 64 << 20  # ... so many bytes, which may be all zeros
MAX_ARTIFACT_ROWS = 1 << 24  # rows with a scale each
MAX_ZSTD_WINDOW = 32 << 20  # bytes; our compression level uses 8 MB

# Corpora
MAX_TOKEN_IDS = 4_000_000  # a table has an entry for each id; the largest vocabularies have 262,144
MAX_CORPUS_MANIFEST = 4 << 20  # bytes of corpus.json; about 100 per shard of 100 million tokens
