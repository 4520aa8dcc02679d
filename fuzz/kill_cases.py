"""Every verb that writes, as a case for kill.py: how it is run, what is there after a kill, how it is run again.

The sources of all cases are made once, in `shared`. A case runs in its own empty directory `work`; what stands there
after an uninterrupted run is what the run after a kill must leave, file by file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPE = ["--layers=1", "--dim=16", "--heads=2", "--kv-heads=1", "--mlp-dim=32", "--context=16", "--batch-tokens=64",
         "--threads=1", "--device=cpu", "--quiet"]  # fmt: skip
STEPS = 7
# A time, a number of threads or a path is not part of what a run promises.
# In a report that is also the answer at equal time, and what would settle an answer.
_VOLATILE = {
    "seconds",
    "tokens_per_second",
    "time_left",
    "peak_bytes",
    "path",
    "machine",
    "time",
    "sentences",
    "needed",
}


@dataclass(frozen=True)
class Case:
    """One verb.

    name      for the table
    run       the command, in `work`
    state     what is in `work`: "absent", "resumable" or "complete"; anything else is a loss and raises AssertionError
    again     the next command, given the state
    before    what is put into `work` first: an older output to replace, or a run to resume
    """

    name: str
    run: Callable[[Path, Path], None]
    state: Callable[[Path, Path, Path], str]
    again: Callable[[Path, Path, str], None]
    before: Callable[[Path, Path], None] = lambda shared, work: None


def tiebeam(*arguments: Any) -> None:
    """The command line, in this process; an exit code other than 0 is an error."""
    from tiebeam.cli import tiebeam as program

    code = program.main([str(argument) for argument in arguments], prog_name="tiebeam", standalone_mode=False)
    assert not code, f"exit code {code}"


def prepare(shared: Path) -> None:
    """The sources: text, a corpus, models, runs and an artifact. Their bytes never change again."""
    from tiebeam.corpus import build_corpus
    from tiebeam.doctor.examples import EMBED, HEAD, head_lora, matrix, write_adapter, write_llama

    for i in range(12):
        (shared / "text").mkdir(parents=True, exist_ok=True)
        (shared / "text" / f"{i}.txt").write_text(f"the cat {i} sat on the mat and the dog {i * 7} ran off. " * 12)
    build_corpus([shared / "text"], shared / "corpus", vocab=300)
    write_llama(shared / "twin", {EMBED: matrix(0), HEAD: matrix(0)}, tie_word_embeddings=True)
    write_llama(shared / "tied", {EMBED: matrix(0)}, tie_word_embeddings=True)
    write_adapter(shared, head_lora(), tied=True, lora_alpha=2)
    _write_gguf(shared / "m.gguf")
    tiebeam("train", shared / "corpus", *SHAPE, "--steps=2", "--tie=no", "--out", shared / "untied")
    tiebeam("train", shared / "corpus", *SHAPE, "--steps=5", "--out", shared / "started")
    tiebeam("pack", shared / "untied", "--out", shared / "run.tbp", "--json")
    tiebeam("pack", shared / "started", "--out", shared / "other.tbp", "--json")


def _write_gguf(where: Path) -> None:
    """A GGUF with one matrix stored twice, under two types."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(where, "llama")
    table = np.random.default_rng(0).standard_normal((40, 32)).astype(np.float32)
    for name, dtype in (("token_embd.weight", "Q5_0"), ("output.weight", "Q8_0"), ("output_norm.weight", "F32")):
        kind = gguf.GGMLQuantizationType[dtype]
        writer.add_tensor(name, gguf.quants.quantize(table, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def files(where: Path) -> dict[str, bytes]:
    """Every file below `where`, by name; times and paths in JSON are left out."""
    found = {path.relative_to(where).as_posix(): path for path in sorted(where.rglob("*")) if path.is_file()}
    return {name: _content(path) for name, path in found.items()}


def _content(path: Path) -> bytes:
    if path.name in ("metrics.jsonl", "report.json", "run.json", "compare.json", "memory.json"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return "\n".join(json.dumps(_stable(json.loads(line)), sort_keys=True) for line in lines).encode()
    if path.name == "resume.safetensors":  # the clock is in its header
        return path.read_bytes()[-1024:]
    if path.name == "report.html":
        return b"</html>" if path.read_text().rstrip().endswith("</html>") else b"cut short"
    return b"figure" if path.parent.name == "figures" and path.stat().st_size > 500 else path.read_bytes()


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stable(part) for key, part in value.items() if key not in _VOLATILE}
    return [_stable(part) for part in value] if isinstance(value, list) else value


def _whole(*targets: str) -> Callable[[Path, Path, Path], str]:
    """Each target is absent, as in `expected`, or still as in `before`."""

    def state(work: Path, expected: Path, before: Path) -> str:
        target = work / targets[0]
        if not target.exists():
            assert not (before / targets[0]).exists(), f"{targets[0]} was lost"
            return "absent"
        now, new, old = (_tree(where / targets[0]) for where in (work, expected, before))
        assert now in (new, old), f"{targets[0]} is neither the old nor the new one: {_difference(now, new)}"
        return "complete"

    return state


def _tree(target: Path) -> dict[str, bytes]:
    return files(target) if target.is_dir() else {"": target.read_bytes()} if target.exists() else {}


def _difference(now: dict[str, bytes], then: dict[str, bytes]) -> str:
    return ", ".join(sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name)))[:200]


def _run_state(name: str) -> Callable[[Path, Path, Path], str]:
    """A run is absent, or begun and resumable, or finished."""

    def state(work: Path, expected: Path, before: Path) -> str:
        from tiebeam.train import RunDirectory

        run = RunDirectory(work / name)
        if not (run.path / "run.json").exists():
            left = [path.name for path in run.path.iterdir()] if run.path.exists() else []
            assert all(name.startswith(".") for name in left), f"files without run.json: {left}"
            return "absent"
        run.read_run()
        if run.has_state:
            run.load_state()  # raises if it is not complete
        if not (run.path / "model.safetensors").exists():
            return "resumable"
        now, new, old = (files(where / name) for where in (work, expected, before))
        for file in ("model.safetensors", "config.json", "tokenizer.json", "README.md"):
            assert now.get(file) in (new.get(file), old.get(file)), f"{file} is neither the old nor the new one"
        return "complete" if now == new else "resumable"

    return state


def _comparison_state(work: Path, expected: Path, before: Path) -> str:
    if not (work / "out" / "compare.json").exists():
        return "absent"
    if (work / "out" / "report.json").exists():
        json.loads((work / "out" / "report.json").read_text())
    for run in ("tied-d16-v300-s0", "untied-d16-v300-s0"):
        if (work / "out" / run).exists():
            _run_state(f"out/{run}")(work, expected, before)
    return "complete" if (work / "out" / "report.html").exists() else "resumable"


def _forced(*arguments: Any) -> Callable[[Path, Path, str], None]:
    """The same command, with --force if the target is complete."""

    def again(shared: Path, work: Path, state: str) -> None:
        _command(*arguments, *(["--force"] if state == "complete" else []))(shared, work)

    return again


def _command(*arguments: Any) -> Callable[[Path, Path], None]:
    """A command; {s} is the directory of the sources and {w} the working directory."""

    def run(shared: Path, work: Path) -> None:
        tiebeam(*(str(argument).format(s=shared, w=work) for argument in arguments))

    return run


def _verb(name: str, *arguments: str, target: str = "out", before: Any = None) -> Case:
    """A verb with a target; `before` makes an older one, which is then replaced with --force."""
    if before is None:
        return Case(name, _command(*arguments), _whole(target), _forced(*arguments))
    return Case(name, _command(*arguments, "--force"), _whole(target), _forced(*arguments), before)


_TRAIN = ("train", "{s}/corpus", *SHAPE, f"--steps={STEPS}", "--save-every=1e-9", "--out", "{w}/out")


def _train_again(shared: Path, work: Path, state: str) -> None:
    if state == "absent":
        _command(*_TRAIN)(shared, work)
    elif state == "resumable":
        tiebeam("train", "--resume", "--out", work / "out", f"--steps={STEPS}", "--save-every=1e-9", "--quiet")


def _complete_run(shared: Path, work: Path, state: str = "resumable") -> None:
    if state != "complete":
        tiebeam("train", "--resume", "--out", work / "out", "--quiet")


def _train_force_again(shared: Path, work: Path, state: str) -> None:
    from tiebeam.train import RunDirectory

    old = state != "absent" and RunDirectory(work / "out").read_run()["settings"]["steps"] != STEPS
    if old:
        _command(*_TRAIN, "--force")(shared, work)
    else:
        _train_again(shared, work, state)


def _copy(source: str, *more: str) -> Callable[[Path, Path], None]:
    def before(shared: Path, work: Path) -> None:
        shutil.copytree(shared / source, work / "out")
        for name in more:
            (work / "out" / name).unlink()

    return before


def _compare(shared: Path, work: Path, state: str = "") -> None:
    from tiebeam.compare import compare, figures
    from tiebeam.compare.comparison import base_settings
    from tiebeam.corpus import build_corpus

    # Each takes a second to draw, and all are written alike.
    figures._FIGURES = dict(list(figures._FIGURES.items())[:2])
    figures._heatmap = lambda figure, document, name: None
    base = base_settings(steps=4, layers=1, dim=16, heads=2, kv_heads=1, mlp_dim=32, context=16, batch_tokens=64,
                         threads=1, device="cpu", save_every=1e-9)  # fmt: skip
    compare(base, build_corpus([shared / "corpus"]), work / "out", bigram_dim=4, bigram_steps=2)


def _corpus(vocab: int) -> Callable[..., None]:
    def run(shared: Path, work: Path, state: str = "") -> None:
        from tiebeam.corpus import build_corpus

        build_corpus([shared / "text"], work / "out", vocab=vocab)

    return run


_TIE = ("tie", "{s}/twin", "{w}/out", "--no-proof", "--quiet", "--json")
_UNTIE = ("untie", "{s}/tied", "{w}/out", "--no-proof", "--quiet", "--json")
_JOINT = ("tie", "{s}/untied", "{w}/out", "--joint", "--rank=8", "--text={s}/text/0.txt", "--text={s}/text/1.txt",
          "--text={s}/text/2.txt", "--quiet", "--json")  # fmt: skip
_EXTEND = ("extend", "{s}/untied", "{w}/out", "--token=<new>", "--no-proof", "--quiet", "--json")
_TRIM = ("trim", "{s}/untied", "{w}/out", "--text={s}/text", "--keep=280", "--ladder=none", "--no-proof", "--quiet",
         "--json")  # fmt: skip
_MERGE = ("merge", "{s}/base", "{s}/adapter", "{w}/out", "--no-proof", "--quiet", "--json")
_QUANTIZE = ("quantize", "{s}/m.gguf", "{w}/out.gguf", "--embed=Q4_0", "--head=F16", "--yes", "--no-proof", "--quiet",
             "--json")  # fmt: skip
_UNPACK = ("unpack", "{s}/run.tbp", "{w}/out", "--json")
_PACK = ("pack", "{s}/untied", "--out", "{w}/out.tbp", "--json")
_EXPORT = ("studio", "--export", "{w}/out")


def _export_again(shared: Path, work: Path, state: str) -> None:
    _command(*_EXPORT)(shared, work)


CASES = [
    _verb("tie", *_TIE),
    _verb("tie --force", *_TIE, before=_command(*_UNTIE)),
    _verb("untie", *_UNTIE),
    _verb("tie --joint", *_JOINT),
    _verb("tie --joint --distill", *_JOINT, "--distill=1e-7"),
    _verb("extend", *_EXTEND),
    _verb("extend --force", *_EXTEND, before=_command(*_UNTIE)),
    _verb("trim", *_TRIM),
    _verb("trim --force", *_TRIM, before=_command(*_UNTIE)),
    _verb("merge", *_MERGE),
    _verb("quantize", *_QUANTIZE, target="out.gguf"),
    _verb("quantize --force", *_QUANTIZE, target="out.gguf",
          before=lambda shared, work: shutil.copy(shared / "m.gguf", work / "out.gguf")),
    _verb("doctor --fix", "doctor", "{s}/twin", "--fix", "--out", "{w}/out", "--json"),
    Case("train", _command(*_TRAIN), _run_state("out"), _train_again),
    Case("train --resume", lambda shared, work: _train_again(shared, work, "resumable"), _run_state("out"),
         _train_again, _copy("started")),
    Case("train --resume, no model", _complete_run, _run_state("out"), _complete_run,
         _copy("started", "model.safetensors")),
    Case("train --force", _command(*_TRAIN, "--force"), _run_state("out"), _train_force_again, _copy("started")),
    Case("compare", _compare, _comparison_state, _compare),
    _verb("pack", *_PACK, target="out.tbp"),
    _verb("pack --force", *_PACK, target="out.tbp",
          before=lambda shared, work: shutil.copy(shared / "other.tbp", work / "out.tbp")),
    _verb("unpack", *_UNPACK),
    _verb("unpack --force", *_UNPACK, before=_command("unpack", "{s}/other.tbp", "{w}/out", "--json")),
    Case("studio --export", _command(*_EXPORT), _whole("out"), _export_again),
    Case("studio --export, again", _command(*_EXPORT), _whole("out"), _export_again, _command(*_EXPORT)),
    Case("corpus build", _corpus(300), _whole("out"), _corpus(300)),
    Case("corpus build, again", _corpus(300), _whole("out"), _corpus(300), _corpus(280)),
    Case("generate --logits",
         _command("generate", "{s}/untied", "the cat", "--new=1", "--logits", "{w}/out.npy", "--json"),
         _whole("out.npy"),
         lambda shared, work, state: _command("generate", "{s}/untied", "the cat", "--new=1", "--logits",
                                              "{w}/out.npy", "--json")(shared, work)),
]  # fmt: skip
