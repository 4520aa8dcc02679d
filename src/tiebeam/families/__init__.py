"""Where each architecture keeps its pair: a table of what its code fixes, and guesses by name and shape otherwise.

Nothing here opens a file: a checkpoint arrives as a mapping from names to shapes and its config as a dictionary.
"""

from tiebeam.families.locate import Found, find_pair, named_pair
from tiebeam.families.parameter_count import Counted, count_from_config, countable_types
from tiebeam.families.registry import Architecture, known_types, lookup, vocabulary, width
from tiebeam.families.scales import Scales, scales
from tiebeam.families.tie_flag import Declared, declared_in_gguf, resolve_declared

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
