"""Facts about this machine for the record of a run: CPU, caches, instruction sets, memory, versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_SETS = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
         "amx_bf16", "amx_int8", "asimd", "sve", "bf16")  # fmt: skip
_PACKAGES = (
    "numpy",
    "torch",
    "transformers",
    "safetensors",
    "gguf",
    "peft",
    "tokenizers",
    "mlx",
    "starlette",
    "uvicorn",
)


def facts(threads: int) -> dict[str, Any]:
    """Everything that a reader needs to judge a figure."""
    info = _cpu_info()
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "caches": _caches(),
        "instruction_sets": [
            name for name in _SETS if name in (info.get("flags") or info.get("Features") or "").split()
        ],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "load_average": round(os.getloadavg()[0], 2),
    }


def ticks() -> tuple[int, int] | None:
    """Of all cores since the start: what the host of this virtual machine took away, and all. None if unknown."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    counts = [int(count) for count in path.read_text().split("\n", 1)[0].split()[1:9]]
    return counts[7], sum(counts)


def stolen(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """The share of the cores' time that the host took away between two calls of `ticks`."""
    if before is None or after is None or after[1] == before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def _cpu_info() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        found[f"L{level}{'' if kind == 'Unified' else kind[0].lower()}"] = size
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def describe(found: dict[str, Any]) -> list[str]:
    """The facts as lines of a page."""
    share = found.get("stolen")
    return [
        f"- {found['cpu']}, {found['cores']} cores, {found['threads']} threads used; caches "
        + ", ".join(f"{name} {size}" for name, size in found["caches"].items()),
        f"- instruction sets: {', '.join(found['instruction_sets'])}",
        f"- {found['memory_gb']} GB of memory; {found['system']}; load average before the run {found['load_average']}"
        + (f"; the host took {100 * share:.1f}% of the cores' time during the run" if share is not None else ""),
        f"- Python {found['python']}, " + ", ".join(f"{name} {v}" for name, v in found["versions"].items()),
    ]
