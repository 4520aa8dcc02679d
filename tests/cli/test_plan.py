"""`tiebeam plan`: numbers, sentences, and conflicting options."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiebeam
from helpers.building import llama_config, table, write_model

SERVING = ["further_vocabulary", "kv_cache", "logits_peak"]
KEYS = ["vocab", "dim", "trunk", "matrix", "tied_total", "untied_total", "saved", "head_share", "bytes",
        "optimizer_bytes", "verdict"]  # fmt: skip


def test_json_of_a_known_model(run):
    code, out, err = run("plan", "--model", "phi-4-mini", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document) == [*KEYS, *SERVING]
    assert (document["matrix"], document["tied_total"]) == (614_596_608, 3_836_021_760)
    assert document["bytes"] == {"fp32": 2_458_386_432, "bf16": 1_229_193_216, "int8": 614_596_608}
    assert document["optimizer_bytes"] == 8 * 614_596_608
    assert document["verdict"].startswith("Of 22 known models where a separate head would be 10-15% of the total, 16")


def test_json_without_non_embedding_parameters_has_nulls_and_still_a_verdict(run):
    _, out, _ = run("plan", "--vocab", "50k", "--dim", "4,096", "--json")
    document = json.loads(out)
    assert list(document) == [*KEYS, *SERVING]
    assert [key for key in KEYS if document[key] is None] == ["trunk", "tied_total", "untied_total", "head_share"]
    assert document["saved"] == 204_800_000
    for share in ("20.5% of a 1B model", "2.9% of a 7B model", "0.3% of a 70B model"):
        assert share in document["verdict"]


def test_text_of_a_known_model_shows_tied_against_untied(run):
    code, out, _ = run("plan", "--model", "tinyllama")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "● Tying saves 65.5M parameters, 6.0% of the untied model"
    assert lines[1].startswith("  TinyLlama 1.1B · TinyLlama/")
    assert lines[1].endswith(": untied, two matrices of 32,000 x 2,048 = 65,536,000 each")
    total = next(line for line in lines if line.startswith("  total"))
    assert total.split() == ["total", "1,034,512,384", "1,100,048,384", "6.0%"]
    bf16 = next(line for line in lines if line.startswith("  model bf16"))
    assert bf16.split()[2:] == ["2.1", "GB", "2.2", "GB", "131", "MB"]
    adam = next(line for line in lines if line.startswith("  vocab Adam"))
    assert adam.split()[2:] == ["524", "MB", "1.0", "GB", "524", "MB"]
    tied, untied = (next(line for line in lines if line.startswith(f"  {word} ") and "█" in line)
                    for word in ("tied", "untied"))  # fmt: skip
    assert untied.startswith("  untied" + tied[len("  untied") :])
    assert untied.count("▒") > 0 == tied.count("▒")


def test_text_without_non_embedding_parameters_shows_the_usual_sizes(run):
    _, out, _ = run("plan", "--vocab", "50000", "--dim", "4096")
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(("  1B", "  7B", "  70B"))}
    assert [rows[size].split()[1] for size in ("1B", "7B", "70B")] == ["20.5%", "2.9%", "0.3%"]
    assert "204.8M" in out
    assert "409.6M" in out


def test_a_model_too_small_for_both_matrices_is_marked(run):
    _, out, _ = run("plan", "--vocab", "256k", "--dim", "16384")
    row = next(line for line in out.splitlines() if line.startswith("  7B"))
    assert row.split() == ["7B", "-", "-", "both", "are", "8.39B"]
    code, out, _ = run("plan", "--vocab", "1M", "--dim", "1M", "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "The two matrices alone are 2.00T, more than a 70B model has.")


def test_trunk_gives_totals(run):
    _, out, _ = run("plan", "--vocab", "50257", "--dim", "768", "--trunk", "85,842,432", "--json")
    document = json.loads(out)
    assert (document["tied_total"], document["saved"]) == (124_439_808, 38_597_376)


def test_doubts_and_published_totals_are_shown(run):
    _, out, _ = run("plan", "--model", "Falcon-7B")
    text = " ".join(out.split())
    assert "Published as 7,217,189,760. Note: the published files hold the table twice" in text
    assert "Doubt: tied by class default" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "nothing to calculate; give --vocab and --dim, --config FILE or --model NAME"),
        (["--vocab", "5"], "--vocab alone is not enough; add --dim"),
        (["--trunk", "5"], "--trunk alone is not enough; add --vocab and --dim"),
        (["--vocab", "0", "--dim", "5"], "--vocab must be at least 1, not 0"),
        (["--vocab", "3,2B", "--dim", "5"], "--vocab: '3,2B' is not a count"),
        (["--vocab", "5", "--dim", "3.2"], "--dim: '3.2' is not a whole number; did you mean 3.2B"),
        (["--model", "gpt2", "--config", "c"], "--config and --model each name a model"),
        (["--model", "gpt2", "--dim", "5"], "--model already fixes the sizes; leave out --dim"),
        (["--config", "c", "--vocab", "5"], "--config already fixes the sizes; leave out --vocab"),
        (["--model", "rembert"], "RemBERT cannot be tied"),
        (["--model", "smollm2"], "'smollm2' matches 3 known models"),
        (["--model", "phi-5-mini"], "no known model is called 'phi-5-mini'; similar: phi-3.5-mini"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_2(run, arguments, sentence):
    code, out, err = run("plan", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_narrow_terminals_are_not_overrun(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for arguments in (["--model", "llama-3.1-405b"], ["--model", "falcon-7b"], ["--vocab", "256k", "--dim", "16384"]):
        _, out, _ = run("plan", *arguments)
        _, _, *body = out.splitlines()
        assert max(map(len, body)) <= 60, out


def test_no_line_ends_in_blanks(run):
    _, out, _ = run("plan", "--model", "phi-4-mini")
    assert all(line == line.rstrip() for line in out.splitlines())


def test_ascii_output_replaces_the_bar_characters():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(tiebeam.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "tiebeam", "plan", "--model", "gpt2"], capture_output=True, env=environment, check=True
    )
    text = done.stdout.decode("ascii")
    assert "tied, one matrix" in text
    assert "####" in text
    assert "...." in text
    assert "?" not in text


TINYLLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 2048,
    "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}  # fmt: skip


def test_config_alone_gives_the_count(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINYLLAMA))
    for path in (tmp_path / "config.json", tmp_path):
        code, out, _ = run("plan", "--config", path, "--json")
        document = json.loads(out)
        assert (code, document["untied_total"], document["tied_total"]) == (0, 1_100_048_384, 1_034_512_384)


def test_an_uncountable_config_names_the_options_to_give(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nobody_knows", "vocab_size": 5}))
    code, out, err = run("plan", "--config", tmp_path / "config.json")
    assert (code, out) == (2, "")
    assert "(model_type 'nobody_knows') cannot be counted from its config alone; give --vocab, --dim" in err


@pytest.mark.parametrize("text", [None, "", "[1]", "{", '{"vocab_size": 1, "vocab_size": 2}'])
def test_a_config_that_cannot_be_read_is_exit_3(run, tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    code, out, err = run("plan", "--config", tmp_path / "config.json")
    assert (code, out, len(err.splitlines())) == (3, "", 1)


def test_plan_of_any_checkpoint(run, tmp_path, monkeypatch):
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1), "model.norm.weight": table(2)[0]}
    where = write_model(tmp_path / "gpt2", tensors, llama_config(tie_word_embeddings=False))
    code, out, _ = run("plan", "--model", where, "--json")
    document = json.loads(out)
    assert (code, document["vocab"], document["dim"], document["trunk"]) == (0, 40, 8, 8)
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("plan", "--model", "./gpt2", "--json")[1]) == document, "a path is a path"
    assert json.loads(run("plan", "--model", "gpt2", "--json")[1])["vocab"] == 50257, "a known name comes first"
    assert ": untied, two matrices of 40 x 8 = 320 each" in run("plan", "--model", "./gpt2")[1]


def test_plan_of_a_torn_checkpoint_has_a_remark(run, tmp_path):
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1)}
    where = write_model(tmp_path / "torn", tensors, llama_config(tie_word_embeddings=True))
    code, out, _ = run("plan", "--model", where)
    assert code == 0
    assert "Its state is torn: declared tied, but two different matrices are stored" in " ".join(out.split())


def test_missing_checkpoint_is_exit_3(run, tmp_path):
    code, out, err = run("plan", "--model", tmp_path / "nothing")
    assert (code, out) == (3, "")
    assert "does not exist" in err


def test_ranks_add_the_communication_volume(run):
    _, out, _ = run("plan", "--vocab", "200k", "--dim", "4096", "--ranks", "8", "--tokens", "8192", "--json")
    document = json.loads(out)
    assert list(document) == [*KEYS, "exchanged", *SERVING]
    assert document["exchanged"]["ddp"] == {"tied": 5_734_400_000, "untied": 11_468_800_000}
    _, out, _ = run("plan", "--vocab", "200k", "--dim", "4096", "--ranks", "64")
    lines = [line.split() for line in out.splitlines()]
    assert ["DDP", "6.5", "GB", "12.9", "GB"] in lines
    assert ["--shard-vocab", "17.2", "GB", "17.2", "GB"] in lines


def test_tokens_need_ranks(run):
    code, _, err = run("plan", "--vocab", "200k", "--dim", "4096", "--tokens", "8192")
    assert (code, err.count("\n")) == (2, 1)
    assert "give --ranks too" in err
    assert run("plan", "--vocab", "200k", "--dim", "4096", "--ranks", "2", "--tokens", "0")[0] == 2


def test_transcripts_on_the_distributed_page_match_plan(run):
    page = Path(__file__).parents[2] / "docs" / "distributed.md"
    shown = page.read_text().split("```console\n")[1].split("```")[0]
    for transcript in shown.split("$ tiebeam ")[1:]:
        command, _, output = transcript.strip().partition("\n")
        assert run(*command.split()).stdout.rstrip().endswith(output)


GEMMA3 = {
    "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
    "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "sliding_window": 512, "sliding_window_pattern": 6,
}  # fmt: skip


def test_context_adds_the_kv_cache_and_the_logits(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GEMMA3))
    document = json.loads(run("plan", "--config", tmp_path, "--context", "32k", "--json").stdout)
    width = 2 * 1 * 256 * 2  # keys and values of one head of 256, in bf16
    full, sliding = 4, 22  # every 6th layer of 26 attends to all tokens
    assert document["kv_cache"] == {
        "bytes_per_token": 26 * width,
        "context": 32_000,
        "bytes": width * (full * 32_000 + sliding * 512),
    }
    assert document["logits_peak"] == {"bytes_per_token": 4 * 262144, "tokens": 32_000, "bytes": 4 * 262144 * 32_000}
    lines = [line.split() for line in run("plan", "--config", tmp_path, "--context", "32k").stdout.splitlines()]
    assert ["KV", "cache", "27", "kB", "per", "token", "143", "MB", "at", "32,000", "tokens"] in lines
    assert ["logits", "1.0", "MB", "per", "token", "33.6", "GB", "at", "32,000", "tokens"] in lines


def test_the_kv_cache_is_the_one_that_transformers_allocates(run, tmp_path):
    import torch
    from transformers import DynamicCache

    from helpers.tiny_models import build

    model = build("qwen3")
    model.save_pretrained(tmp_path / "m")
    cache = DynamicCache(config=model.config)
    model(torch.arange(10)[None], past_key_values=cache)
    values = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    document = json.loads(run("plan", "--model", tmp_path / "m", "--context", "10", "--json").stdout)
    assert document["kv_cache"]["bytes"] == 2 * values


def test_per_layer_embeddings_are_priced_from_the_config(run, tmp_path):
    config = {
        "model_type": "gemma3n_text", "vocab_size": 262400, "hidden_size": 2048, "num_hidden_layers": 35,
        "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run("plan", "--config", tmp_path, "--json")
    assert done.exit_code == 0
    (further,) = json.loads(done.stdout)["further_vocabulary"]
    assert further == {"kind": "per-layer embedding", "rows": 262144, "dim": 8960, "params": 262144 * 8960}
    assert "262,144 x 8,960" in run("plan", "--config", tmp_path).stdout
