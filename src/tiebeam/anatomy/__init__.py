"""Where each architecture keeps its pair: a table of what its code fixes, and guesses by name and shape otherwise.

Nothing here opens a file: a checkpoint arrives as a mapping from names to shapes and its config as a dictionary.
"""

from tiebeam.anatomy.architecture import Architecture, known_types, lookup, vocabulary, width
from tiebeam.anatomy.declared import Declared, declared_in_gguf, resolve_declared
from tiebeam.anatomy.finding import Found, find_pair, named_pair
from tiebeam.anatomy.scales import Scales, scales
from tiebeam.anatomy.trunk import Counted, count_from_config, countable_types

__all__ = [
    "Architecture",
    "Counted",
    "Declared",
    "Found",
    "Scales",
    "count_from_config",
    "countable_types",
    "declared_in_gguf",
    "find_pair",
    "known_types",
    "lookup",
    "named_pair",
    "resolve_declared",
    "scales",
    "vocabulary",
    "width",
]
