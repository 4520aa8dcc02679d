"""Whether ggml opens each GGUF file, and the size of a block of each tensor type. One JSON document.

Runs alone in an environment that has xllamacpp, whose library exports ggml's C interface. A file that kills the reader
kills only the child process that reads it.
"""

import ctypes
import importlib.util
import json
import os
import sys
from pathlib import Path


class Parameters(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def library():
    package = Path(importlib.util.find_spec("xllamacpp").submodule_search_locations[0])
    ggml = ctypes.CDLL(str(next(package.glob("xllamacpp*.so"))))
    ggml.gguf_init_from_file.restype = ctypes.c_void_p
    ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, Parameters]
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    return ggml


def opens(ggml, path):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        found = ggml.gguf_init_from_file(os.fsencode(path), Parameters(True, None))
        os._exit(0 if found else 1)
    status = os.waitpid(child, 0)[1]
    return {0: "opens", 1: "refuses"}.get(os.waitstatus_to_exitcode(status), "dies")


ggml = library()
kinds = json.loads(sys.argv[1])
print(
    json.dumps(
        {
            "files": {path: opens(ggml, path) for path in sys.argv[2:]},
            "blocks": {kind: [ggml.ggml_blck_size(kind), ggml.ggml_type_size(kind)] for kind in kinds},
        }
    )
)
