"""What the vocabulary costs: parameters, bytes, communication volume, KV cache, logits. Arithmetic on integers only.

`price` is the entry point. `units` parses and writes numbers as people do ("3.2B", "614.6M", "1.2 GB").
"""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader

if TYPE_CHECKING:
    from tiebeam.budget.communication import TOKENS, BytesSent, CommunicationVolume, communication_volume
    from tiebeam.budget.pair_cost import Budget, Memory, price
    from tiebeam.budget.serving_memory import KVCache, kv_cache, logits_peak
    from tiebeam.budget.units import LARGEST_COUNT, human, human_bytes, parse_bytes, parse_count, percent

__all__ = [
    "LARGEST_COUNT",
    "TOKENS",
    "Budget",
    "BytesSent",
    "CommunicationVolume",
    "KVCache",
    "Memory",
    "communication_volume",
    "human",
    "human_bytes",
    "kv_cache",
    "logits_peak",
    "parse_bytes",
    "parse_count",
    "percent",
    "price",
]

__getattr__ = loader(
    __name__,
    {
        "Budget": "tiebeam.budget.pair_cost",
        "BytesSent": "tiebeam.budget.communication",
        "CommunicationVolume": "tiebeam.budget.communication",
        "KVCache": "tiebeam.budget.serving_memory",
        "LARGEST_COUNT": "tiebeam.budget.units",
        "Memory": "tiebeam.budget.pair_cost",
        "TOKENS": "tiebeam.budget.communication",
        "communication_volume": "tiebeam.budget.communication",
        "human": "tiebeam.budget.units",
        "human_bytes": "tiebeam.budget.units",
        "kv_cache": "tiebeam.budget.serving_memory",
        "logits_peak": "tiebeam.budget.serving_memory",
        "parse_bytes": "tiebeam.budget.units",
        "parse_count": "tiebeam.budget.units",
        "percent": "tiebeam.budget.units",
        "price": "tiebeam.budget.pair_cost",
    },
)
