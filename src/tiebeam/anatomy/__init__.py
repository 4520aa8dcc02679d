"""Where each architecture keeps its pair: a table of what its code fixes, and guesses by name and shape otherwise.

Nothing here opens a file: a checkpoint arrives as a mapping from names to shapes and its config as a dictionary.
"""

from tiebeam.anatomy.architecture import Architecture, known_types, lookup, vocabulary, width
from tiebeam.anatomy.declared import Declared, declared_in_gguf, resolve_declared

__all__ = [
    "Architecture",
    "Declared",
    "declared_in_gguf",
    "known_types",
    "lookup",
    "resolve_declared",
    "vocabulary",
    "width",
]
