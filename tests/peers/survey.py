"""Write a loader's table of kinds (src/tiebeam/doctor/loaders/*.json) from what the loader was seen to do.

    python tests/peers/survey.py OBSERVATIONS --mlx-lm DIR --llama-cpp DIR

OBSERVATIONS is a directory that the full matrix run left (`LOADER.jsonl` and the cases that they name). For each model
type the one kind is searched that explains every observed case; a loader's file defines its kinds (`WORDS`, `outcome`).
A type without such a kind is written down as not known, with the first case that contradicts the nearest one.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from peers import source_kinds
from tiebeam.doctor import loaders as package

TABLES = Path(package.__file__).parent
Flags = dict[str, bool | None]
Case = tuple[str, Flags, str]  # stored state, flags by level, observed outcome
Rule = Callable[[tuple[str, ...], str, Flags], tuple[str, str]]
_STAMP = re.compile(r"^[\d.]+ [A-Z] ")  # llama.cpp's log
VALUE = {"true": True, "false": False, "absent": None}


def read(path: Path) -> tuple[dict[str, str], dict[str, dict[str, dict[str, Any]]]]:
    """(versions, model type -> case name -> what was observed) of one observation file."""
    versions: dict[str, str] = {}
    observed: dict[str, dict[str, dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if isinstance(entry, dict):
            versions |= entry
        else:
            where = Path(entry[0])
            found = {**entry[1], "path": str(where)}
            observed.setdefault(where.parent.name, {})[where.name] = found
            if found.get("outcome") == "refuses" and "does not recognize this arch" in found.get("why", ""):
                found["outcome"] = "not supported"
    return versions, observed


def cases_of(observed: dict[str, dict[str, Any]]) -> list[Case]:
    found = []
    for name, entry in observed.items():
        stored, top, text = name.split("-")
        flags = {"top": VALUE[top], "text": VALUE[top if text == "same" else text]}
        found.append((stored, flags, entry["outcome"]))
    return found


def fit(cases: list[Case], words: Iterable[Iterable[str]], outcome: Rule) -> tuple[tuple[str, ...], list[Case]]:
    """The first kind with the fewest cases that it does not explain, and those cases."""
    best: tuple[tuple[str, ...], list[Case]] | None = None
    for kind in itertools.product(*words):
        wrong = [case for case in cases if outcome(kind, case[0], case[1])[0] != case[2]]
        if best is None or len(wrong) < len(best[1]):
            best = kind, wrong
        if not wrong:
            break
    assert best is not None
    return best


def loads_nothing(observed: dict[str, dict[str, Any]]) -> str | None:
    """Why no state loads, if none does: the tiny model, not the pair, is then what the loader refuses."""
    refused = [entry for entry in observed.values() if entry["outcome"] in ("refuses", "error")]
    if len(refused) < len(observed):
        return None
    healthy = next((e for name, e in observed.items() if name.startswith("differ-false")), refused[0])
    lines = [_STAMP.sub("", line).strip() for line in str(healthy.get("why", "")).split(" | ")]
    told = [line for line in lines if line and "vocab missing newline" not in line]
    return " ".join(told[0].split()) if told else "it ends without a message"


def table(
    versions: dict[str, str], observed: dict[str, dict[str, dict[str, Any]]], name: str, rule: Any
) -> dict[str, Any]:
    kinds: dict[str, list[str]] = {}
    unsupported, unknown = [], {}
    for model_type, entries in sorted(observed.items()):
        why = loads_nothing(entries)
        if all(e["outcome"] == "not supported" for e in entries.values()):
            unsupported.append(model_type)
        elif why is not None:
            unknown[model_type] = f"the tiny model of the survey does not load: {why[:100]}"
        else:
            kind, wrong = fit(cases_of(entries), rule.WORDS, rule.outcome)
            if wrong:
                unknown[model_type] = f"its behaviour fits no simple rule ({len(wrong)} of {len(entries)} states)"
            else:
                kinds.setdefault(" ".join(kind), []).append(model_type)
    return {
        "version": versions[name],
        "date": datetime.date.today().isoformat(),
        "kinds": kinds,
        "not supported": unsupported,
        "not known": unknown,
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """JSON with one line per kind."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}" if value else f" {json.dumps(key)}: {{}}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def by_table(
    versions: dict[str, str], observed: dict[str, dict[str, dict[str, Any]]], name: str, rule: Any
) -> dict[str, Any]:
    """For a loader whose prediction follows from the table of architectures: the types for which it holds, and not."""
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.inspection import inspect

    kinds: dict[str, list[str]] = {}
    unknown = {}
    for model_type, entries in sorted(observed.items()):
        opened = [(open_checkpoint(entry["path"]), entry["outcome"]) for entry in entries.values()]
        reports = [(inspect(checkpoint), checkpoint.config, seen) for checkpoint, seen in opened]
        wrong = {
            kind: sum(rule.by_table(kind, *model)[0] not in (seen, "not known") for *model, seen in reports)
            for kind in rule.KINDS
        }
        kind = min(wrong, key=lambda name: wrong[name])
        if not wrong[kind]:
            kinds.setdefault(kind, []).append(model_type)
        elif why := loads_nothing(entries):
            unknown[model_type] = f"the tiny model of the survey does not load: {why[:100]}"
        else:
            unknown[model_type] = f"its behaviour fits no simple rule ({wrong[kind]} of {len(entries)} states)"
    return {
        "version": versions[name],
        "date": datetime.date.today().isoformat(),
        "kinds": kinds,
        "not known": unknown,
    }


def llama_outcome(case: str, entry: dict[str, Any]) -> str:
    """The outcome of converting and loading, in the words of a prediction."""
    if entry["converter"] != "writes":
        return "not supported" if entry["converter"] == "not supported" else "refuses"
    if entry["runtime"] != "loads":
        return "refuses"
    stored, head = case.split("-")[0], entry["held"].get("output.weight")
    if stored in ("one", "equal"):
        return "keeps both" if head else "ties"
    return "keeps both" if head else "drops the stored head"


def with_source(document: dict[str, Any], read: dict[str, str]) -> dict[str, Any]:
    """Add kinds read in source for the types that have none, after checking them against those that have one."""
    seen = {t: kind for kind, types in document["kinds"].items() for t in types}
    for model_type in sorted(seen.keys() & read.keys()):
        if seen[model_type] != read[model_type]:
            raise SystemExit(f"{model_type}: observed {seen[model_type]!r}, read {read[model_type]!r}")
    kinds: dict[str, list[str]] = {}
    for model_type, kind in sorted(read.items()):
        if model_type not in seen and model_type not in document["not supported"]:
            kinds.setdefault(kind, []).append(model_type)
            document["not known"].pop(model_type, None)
    document["from source"] = kinds
    return document


def llama_tables(where: Path, source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The converter's table by model type and the runtime's by GGUF architecture."""
    from tiebeam.doctor.loaders import llama_cpp_converter

    versions, observed = read(where / "llama_cpp.jsonl")
    for entries in observed.values():
        for case, entry in entries.items():
            entry["outcome"] = llama_outcome(case, entry)
    gguf = source_kinds.llama_cpp(source)
    converter = table(versions, observed, "xllamacpp", llama_cpp_converter)
    types = {t: next(iter(entries.values())) for t, entries in observed.items()}
    readable = {
        t: f"{gguf[e['arch']]} {'written' if e['maps_output'] else 'unmapped'}"
        for t, e in types.items()
        if t in converter["not known"] and not e.get("touches_head", True) and gguf.get(e["arch"], "unused") != "unused"
    }
    seen = {
        types[t]["arch"]: kind.split()[0] for kind, ts in converter["kinds"].items() for t in ts if "arch" in types[t]
    }
    kinds: dict[str, list[str]] = {}
    for arch, kind in sorted(gguf.items()):
        if arch in seen and kind != "unused" and seen[arch] != kind:
            raise SystemExit(f"{arch}: observed {seen[arch]!r}, read {kind!r}")
        kinds.setdefault(kind, []).append(arch)
    run = {kind: [a for a in archs if a in seen] for kind, archs in kinds.items()}
    runtime = {
        "version": versions["xllamacpp"],
        "date": converter["date"],
        "kinds": run,
        "from source": {kind: [a for a in archs if a not in seen] for kind, archs in kinds.items()},
    }
    return with_source(converter, readable), runtime


def main() -> None:
    """Write every table for which there are observations."""
    from tiebeam.doctor.loaders import mlx_lm, safetensors_load_model, transformers4, transformers5

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("observations", type=Path)
    parser.add_argument("--mlx-lm", type=Path, help="mlx_lm/models of the version that was run")
    parser.add_argument("--llama-cpp", type=Path, help="the source tree of the llama.cpp that was run")
    asked = parser.parse_args()
    where = asked.observations
    for loader, name, rule, make in (
        ("transformers5", "transformers", transformers5, by_table),
        ("safetensors_load_model", "safetensors", safetensors_load_model, by_table),
        ("transformers4", "transformers", transformers4, table),
        ("mlx_lm", "mlx-lm", mlx_lm, table),
    ):
        if (where / f"{loader}.jsonl").exists():
            document = make(*read(where / f"{loader}.jsonl"), name, rule)
            if loader == "mlx_lm" and asked.mlx_lm:
                document = with_source(document, source_kinds.mlx_lm(asked.mlx_lm))
            write(TABLES / f"{loader}.json", document)
    if asked.llama_cpp:
        for loader, document in zip(
            ("llama_cpp_converter", "llama_cpp"), llama_tables(where, asked.llama_cpp), strict=True
        ):
            write(TABLES / f"{loader}.json", document)


if __name__ == "__main__":
    main()
