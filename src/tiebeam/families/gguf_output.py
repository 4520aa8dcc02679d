"""What llama.cpp does with `output.weight`, by the architecture that a GGUF names.

Most architectures use the embedding where it is absent. Some refuse to load without it. Some always use the embedding,
and refuse a file that stores an output.weight ("wrong number of tensors").

Read from src/models/*.cpp of the llama.cpp in xllamacpp 2026.10.11549 (November 2026); run against that runtime in
tests/surgery/test_gguf_output.py for the architectures that its converter can make tiny.
"""

from __future__ import annotations

from typing import Literal

REQUIRED = frozenset({
    "apertus", "arwkv7", "baichuan", "bailingmoe", "bailingmoe2", "codeshell", "dbrx", "deepseek4", "dots1",
    "exaone-moe", "gemma-embedding2", "glm5-next", "gpt-oss", "gptneox", "hy_v4", "internlm2", "jais", "kimi-k3",
    "kimi-linear", "llada-moe", "maple", "mellum", "mimo2", "minimax-m2", "minimax-m3", "muse-glimmer", "nemotron",
    "olmo2", "olmoe", "orion", "phi2", "phimoe", "plamo", "qwen", "qwen2moe", "rwkv6", "rwkv6qwen2", "rwkv7",
    "stablelm", "step35", "talkie", "wavtokenizer-dec", "xverse",
})  # fmt: skip
NEVER = frozenset({"bitnet", "cohere2", "command-r", "gemma", "gemma2", "openelm", "plm"})


def output_weight(architecture: str | None) -> Literal["required", "never", "optional"]:
    """Whether llama.cpp needs, refuses or accepts an `output.weight`; an architecture not listed accepts either.

    >>> output_weight("gptneox"), output_weight("gemma2"), output_weight("llama")
    ('required', 'never', 'optional')
    """
    if architecture in REQUIRED:
        return "required"
    return "never" if architecture in NEVER else "optional"
