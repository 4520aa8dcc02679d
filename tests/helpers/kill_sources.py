"""What the verbs that write are run on in tests/kill, and how."""

from pathlib import Path

from tiebeam.cli import main
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama

SHAPE = ["--layers=1", "--dim=16", "--heads=2", "--kv-heads=1", "--mlp-dim=32", "--context=16", "--batch-tokens=64",
         "--threads=1", "--device=cpu", "--quiet"]  # fmt: skip


def write_sources(where: Path) -> None:
    """Beside the corpus that is there: two models, a text, a run and its artifact."""
    write_llama(where / "twin", {EMBED: matrix(0), HEAD: matrix(0)}, tie_word_embeddings=True)
    write_llama(where / "tied", {EMBED: matrix(0)}, tie_word_embeddings=True)
    (where / "twin" / "figures").mkdir()
    (where / "twin" / "figures" / "loss.png").write_bytes(b"copied along")
    (where / "text").mkdir()
    (where / "text" / "a.txt").write_text("the cat sat on the mat. " * 200)
    main(["train", str(where / "corpus"), *SHAPE, "--steps=2", "--out", str(where / "run")])
    main(["pack", str(where / "run"), "--out", str(where / "run.tbp")])


def exit_code(command: list[str], *more: str, **places: Path) -> int:
    """Of a command line whose {placeholders} are filled in."""
    try:
        main([*(argument.format(**places) for argument in command), *more])
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0
