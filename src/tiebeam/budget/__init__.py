"""What the vocabulary costs: parameters, bytes, communication volume, KV cache, logits. Arithmetic on integers only.

`price` is the entry point. `units` parses and writes numbers as people do ("3.2B", "614.6M", "1.2 GB").
"""

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
