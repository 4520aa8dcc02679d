"""What the common paths may not import, and the public names of the package."""

import inspect
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiebeam
from helpers.building import llama_config, table, write_model

HEAVY = ("torch", "mlx", "transformers", "gguf", "huggingface_hub", "matplotlib", "starlette", "tokenizers")
SRC = str(Path(tiebeam.__file__).parent.parent)


def modules_after(*arguments: str) -> set[str]:
    program = (
        "import sys, json\n"
        "from tiebeam.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC}, check=True,
    )  # fmt: skip
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_imports_nothing_heavy() -> None:
    assert not modules_after("--help") & {*HEAVY, "numpy", "rich"}


def test_inspect_imports_nothing_heavy(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1)}
    where = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False))
    seen = modules_after("inspect", str(where))
    assert not seen & {*HEAVY, "rich", "urllib.request", "ssl", "concurrent.futures", "tiebeam.doctor.loaders"}
    assert not [name for name in seen if name.startswith(("tiebeam.doctor.rules.tb4", "tiebeam.doctor.rules.tb5"))]


def test_inspect_of_a_tied_model_imports_only_what_headers_need(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": table(0)}
    where = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=True))
    seen = modules_after("inspect", str(where))
    assert not seen & {*HEAVY, "numpy", "rich", "click", "pathlib", "textwrap", "shlex", "pkgutil", "struct"}
    assert not seen & {"tiebeam.doctor.examined_adapter", "tiebeam.doctor.examined_module", "tiebeam.equality"}
    assert not seen & {"tiebeam.checkpoint.url_files", "tiebeam.checkpoint.hub"}


def test_inspect_of_an_untied_pair_does_not_import_masked_arrays(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1)}
    where = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False))
    assert "numpy.ma" not in modules_after("inspect", str(where))


@pytest.mark.parametrize("arguments", [["inspect", "nowhere/m"], ["--version"], ["doctor", "nowhere/m"]])
def test_the_command_ends_as_the_function_does(arguments: list[str]) -> None:
    """`python -m tiebeam` turns the collector off while it imports; output and exit code are those of `main`."""
    ends = []
    for program in (["-m", "tiebeam"], ["-c", "from tiebeam.cli import main; main()"]):
        done = subprocess.run(
            [sys.executable, *program, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": SRC},
        )
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]


def test_the_rules_of_every_kind_together_are_all_rules() -> None:
    from tiebeam.doctor import RULES
    from tiebeam.doctor.rules import rules_of

    kinds = [rules_of(kind) for kind in ("checkpoint", "adapter", "module")]
    assert {code: rule for rules in kinds for code, rule in rules.items()} == RULES
    assert sum(map(len, kinds)) == len(RULES)


@pytest.mark.parametrize("name", tiebeam.__all__)
def test_public_name_exists(name: str) -> None:
    assert getattr(tiebeam, name) is not None


def test_documented_names_are_public() -> None:
    functions = {"inspect", "diagnose", "examine", "tie", "untie", "price", "count_parameters", "is_tied", "tie_",
                 "untie_", "guard", "assert_saved", "assert_synced", "Lens", "Decoder"}  # fmt: skip
    modules = {"nn", "train", "lens", "compare", "catalog", "checkpoint", "surgery", "doctor", "corpus", "budget"}
    assert functions | modules <= set(tiebeam.__all__)
    assert set(dir(tiebeam)) == set(tiebeam.__all__)


def test_no_name_is_both_a_function_and_a_submodule() -> None:
    submodules = {module.name for module in pkgutil.iter_modules(tiebeam.__path__)}
    for name in tiebeam.__all__:
        assert inspect.ismodule(getattr(tiebeam, name)) == (name in submodules), name


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tiebeam' has no attribute 'nothing'"):
        _ = tiebeam.nothing


def in_a_fresh_interpreter(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC, "PYTHONIOENCODING": "utf-8"}, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_else() -> None:
    program = "import tiebeam, sys; print([m for m in sys.modules if m.startswith('tiebeam.')], 'numpy' in sys.modules)"
    assert in_a_fresh_interpreter(program) == "['tiebeam._version'] False"


def test_submodules_are_attributes_without_importing_them(tmp_path: Path) -> None:
    where = write_model(tmp_path / "m", {"model.embed_tokens.weight": table()}, llama_config(tie_word_embeddings=True))
    program = "import sys, tiebeam; tiebeam.nn.TiedEmbedding; print(tiebeam.inspect(sys.argv[1]))"
    assert in_a_fresh_interpreter(program, str(where)).startswith("● shared  m · llama · safetensors")


def test_listing_and_pricing_import_neither_numpy_nor_torch() -> None:
    program = (
        "import sys, tiebeam; dir(tiebeam); tiebeam.price(10, 10); tiebeam.catalog.find('gpt2')\n"
        "print({'numpy', 'torch', 'rich'} & set(sys.modules))"
    )
    assert in_a_fresh_interpreter(program) == "set()"
