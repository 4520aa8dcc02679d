"""A model whose every string is hostile goes through every verb: no control character, no forged CI command comes out.

GitHub's runner (actions/runner, src/Runner.Common/ActionCommand.cs) takes a line that starts with :: after blanks, and
##[ anywhere in a line; Azure's takes ##vso[ anywhere in a line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from helpers.building import write_model
from helpers.hostile_models import NAME, TEXT, harmless, hostile_llama
from helpers.studio_files import DIM, WORDS


@pytest.fixture
def runnable(tmp_path) -> Path:
    return hostile_llama(tmp_path / NAME)


@pytest.fixture
def unknown(tmp_path) -> Path:
    """A model of an unknown architecture with hostile names."""
    one, two = (np.random.default_rng(i).standard_normal((len(WORDS), DIM)).astype(np.float32) for i in (0, 1))
    tensors = {f"{TEXT}.embed_tokens.weight": one, f"{TEXT}.lm_head.weight": two}
    config = {"model_type": TEXT, "architectures": [TEXT], "vocab_size": len(WORDS), "tie_word_embeddings": TEXT}
    return write_model(tmp_path / "unknown" / NAME, tensors, config)


@pytest.fixture
def hostile_gguf(tmp_path) -> Path:
    """general.architecture, keys, values, tokens and tensor names."""
    path = tmp_path / f"{NAME}.gguf"
    architecture = "\x1b[2J\n::error::forged##[error]x\u202e"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.name", TEXT)
    writer.add_tokenizer_model(architecture)
    writer.add_token_list([f"{TEXT}{i}" for i in range(len(WORDS))])
    rows = np.random.default_rng(0).standard_normal((len(WORDS), 32)).astype(np.float32)
    writer.add_tensor("token_embd.weight", rows)
    writer.add_tensor("\x1b[2J\n::error::forged\u202e", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def everything(model: Path, target: Path) -> list[tuple[object, ...]]:
    """Each verb on a model, as people, programs and CI call it."""
    looks = [
        ("inspect", model), ("doctor", model), ("doctor", model, "--rows"), ("doctor", model, "--fix"),
        ("doctor", "--recursive", model.parent), ("plan", "--model", model), ("lens", model, "--tokens", "#5", "#6"),
        ("generate", model, "--tokens", "1,2", "-n", 4), ("generate", model, "--tokens", "1,2", "--top", 5),
        ("generate", model, "New York", "-n", 4), ("models", model), ("tie", model, "--dry-run"),
        ("tie", model, target / NAME / "tied", "--keep", "head", "--yes"), ("untie", model, target / NAME / "untied"),
        ("inspect", model, "--embed", TEXT), ("pack", model, "--out", target / "p.tbp"),
        ("unpack", model, target / "unpacked"), ("studio", model / "missing"),
    ]  # fmt: skip
    no_json = {"studio"}
    calls: list[tuple[object, ...]] = [*looks]
    calls += [(*look, "--json") for look in looks if look[0] not in no_json]
    calls += [("doctor", model, "--format", shape) for shape in ("github", "sarif")]
    calls += [("doctor", "--recursive", model.parent, "--format", shape) for shape in ("github", "sarif")]
    return calls


@pytest.mark.parametrize("kind", ["runnable", "unknown", "hostile_gguf"])
def test_no_verb_prints_a_control_character_or_a_forged_command(run, request, tmp_path, kind):
    model = request.getfixturevalue(kind)
    worked = set()
    for i, call in enumerate(everything(model, tmp_path / "targets")):
        (tmp_path / "targets" / NAME).mkdir(parents=True, exist_ok=True)
        if call[0] in ("tie", "untie") and len(call) > 2 and "--dry-run" not in call:
            call = (*call[:2], tmp_path / "targets" / NAME / str(i), *call[3:])
        code, out, err = run(*call)
        assert code in (0, 1, 2, 3), call
        harmless(out)
        harmless(err)
        assert "Traceback" not in err, call
        if "--json" in call and out:
            json.loads(out)
        if code in (0, 1):
            worked.add(call[0])
    assert {"inspect", "doctor", "plan"} <= worked
    assert kind != "runnable" or {"generate", "lens", "tie", "untie"} <= worked


def test_json_keeps_the_true_text(run, unknown, runnable):
    _, out, _ = run("inspect", unknown, "--json")
    document = json.loads(out)
    assert document["architecture"] == TEXT
    assert document["embed"]["name"] == f"{TEXT}.embed_tokens.weight"
    assert document["model"] == str(unknown)
    _, out, _ = run("generate", runnable, "--tokens", "1,2", "-n", "4", "--json")
    assert "\x1b[2J" in json.loads(out)["text"]


def test_text_shows_what_was_escaped(run, unknown):
    _, out, _ = run("inspect", unknown)
    assert r"\x1b[2J\x9b1m\n ::error::forged" in out
    assert "[red]x" in out  # no markup
    assert r"\u202e\u2066\u2028\x7f" in out


def test_annotations_have_one_line_each(run, unknown):
    code, out, _ = run("doctor", unknown, "--format", "github")
    assert code in (0, 1)
    for line in out.splitlines():
        assert re.match(r"::(error|warning|notice) file=[^:,\n]*,title=[^:\n]*::", line), line


def test_sarif_messages_hold_no_link(run, unknown):
    _, out, _ = run("doctor", unknown, "--format", "sarif")
    (found,) = json.loads(out)["runs"]
    for result in found["results"]:
        harmless(result["message"]["text"])
        assert "](http" not in result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"].isascii()


def test_text_that_comes_in_pieces_is_escaped_as_a_whole(capsys):
    from tiebeam.cli.generate import _printer

    show = _printer()
    for piece in ("a\n ", ":", ":err", "or::x #", "#", "[error]", "\x1b", "[2J\t", ": :", "\n", "::", "ok"):
        show(piece)
    out = capsys.readouterr().out
    harmless(out.replace("\t", ""))
    assert out == "a\n :\\x3aerror::x ##\\x5berror]\\x1b[2J\t: :\n:\\x3aok"


def test_reports_in_a_notebook_are_escaped(unknown, runnable):
    import tiebeam
    from tiebeam.doctor import diagnose

    for shown in (tiebeam.inspect(unknown), diagnose(unknown), tiebeam.Lens.open(runnable)):
        harmless(str(shown))
        page = shown._repr_html_()
        harmless(page)
        assert "<script" not in page


def test_a_model_card_has_no_hostile_text(run, runnable, tmp_path):
    code, _, err = run("tie", runnable, tmp_path / "tied", "--keep", "head", "--yes")
    assert code == 0, err
    harmless((tmp_path / "tied" / "README.md").read_text())


@pytest.mark.parametrize("verb", ["inspect", "doctor", "lens"])
def test_colours_are_the_only_escapes_on_a_terminal(run, runnable, monkeypatch, verb):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = run(verb, runnable)
    assert code in (0, 1)
    assert "\x1b[" in out
    harmless(re.sub(r"\x1b\[[0-9;]*m", "", out) + err)


@pytest.mark.parametrize("verb", ["inspect", "doctor", "generate", "lens", "tie", "plan"])
@pytest.mark.parametrize("broken", ["header", "config", "values", "index", "tokenizer", "truncated"])
def test_errors_are_escaped(run, runnable, tmp_path, verb, broken):
    if broken == "header":
        raw = json.dumps({TEXT: {"dtype": TEXT, "shape": [1], "data_offsets": [0, 4]}}).encode()
        (runnable / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(4))
    elif broken == "config":
        (runnable / "config.json").write_text(TEXT)
    elif broken == "values":
        config = json.loads((runnable / "config.json").read_text())
        config |= dict.fromkeys(
            ("vocab_size", "hidden_size", "rope_scaling", "hidden_act", "quantization_config"), TEXT
        )
        (runnable / "config.json").write_text(json.dumps(config))
    elif broken == "index":
        (runnable / "model.safetensors").unlink()
        index = {"weight_map": {TEXT: f"{TEXT}.safetensors"}}
        (runnable / "model.safetensors.index.json").write_text(json.dumps(index))
    elif broken == "tokenizer":
        (runnable / "tokenizer.json").write_text(json.dumps({"model": {"type": TEXT, "vocab": {TEXT: TEXT}}}))
    else:
        (runnable / "model.safetensors").write_bytes((runnable / "model.safetensors").read_bytes()[:-20])
    rest = {"generate": ["New York"], "tie": [tmp_path / "out", "--keep", "head", "--yes"]}.get(verb, [])
    model = ["--model", runnable] if verb == "plan" else [runnable]
    code, out, err = run(verb, *model, *rest)
    assert code in (0, 1, 2, 3)
    harmless(out)
    harmless(err)
    assert code in (0, 1) or err.startswith("tiebeam: ") or "\ntiebeam: " in err


def test_progress_is_escaped(capsys):
    from tiebeam.cli.progress import Progress

    with Progress() as progress:
        progress(TEXT, 1, 2, detail=TEXT)
        progress.note(TEXT)
        progress.say("stage", TEXT)
    err = capsys.readouterr().err
    assert "forged" in err
    harmless(err)
