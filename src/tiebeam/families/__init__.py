"""What is known about model families: where embedding and LM head are, scales, parameter counts, layers, GGUF names.

One file per family (llama.py, gemma.py, ...), found by the registry; architectures.json for types of which only
the pair is known; names and shapes for the rest. Nothing here opens a file: a checkpoint is a mapping from
names to shapes and its config a dictionary. To add a family, add one file: see llama.py or granite.py.
"""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader
from tiebeam.families.locate import Found, find_pair, named_pair
from tiebeam.families.registry import Architecture, known_types, lookup, vocabulary, width
from tiebeam.families.scales import scales
from tiebeam.families.tie_flag import Declared, declared_in_gguf, resolve_declared

if TYPE_CHECKING:
    from tiebeam.families.parameter_count import Counted, count_from_config, countable_types
    from tiebeam.families.spec import Scales

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

__getattr__ = loader(
    __name__,
    {
        "Counted": "tiebeam.families.parameter_count",
        "Scales": "tiebeam.families.spec",
        "count_from_config": "tiebeam.families.parameter_count",
        "countable_types": "tiebeam.families.parameter_count",
    },
)
