"""A jointly tied directory in transformers: `tiebeam.load`, and `trust_remote_code=True` without tiebeam."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

import tiebeam
from helpers.tiny_ggufs import options, write_gguf
from helpers.tiny_models import build
from tiebeam.decode import Decoder, engine_name, open_engine
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.surgery import execute, open_source
from tiebeam.surgery.joint import Recipe, fit_joint, joint_tie
from tiebeam.surgery.joint.joint_tie import open_original

FAMILIES = ["llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "phi3"]
IDS = list(range(4, 40))


def write_joint(where, family, exact_rows=0, rank=24, expand=False, **changes):
    """An untied tiny model of `family` at `where`/model, and its joint tie at `where`/joint."""
    model = build(family, tie_word_embeddings=False, **changes)
    with torch.no_grad():
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            module.weight.normal_(generator=torch.Generator().manual_seed(id(module) % 7))
        if getattr(model.get_output_embeddings(), "bias", None) is not None:
            model.get_output_embeddings().bias.normal_()
    model.save_pretrained(where / "model")
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(96)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(where / "model" / "tokenizer.json"))
    text = " ".join(f"w{min(95, int(i))}" for i in np.random.default_rng(1).exponential(12, 600))
    joint = fit_joint(open_source(where / "model"), text, Recipe(rank, exact_rows=exact_rows, power=1.0))
    execute(joint.plan(), where / "joint", durable=False)
    if expand:
        execute(joint.plan(expand=True), where / "expanded", durable=False)
    return where / "joint"


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).logits[0].numpy()


@pytest.fixture(scope="module")
def joint(tmp_path_factory):
    return write_joint(tmp_path_factory.mktemp("loads"), "llama", exact_rows=7)


@pytest.mark.parametrize("family", ["phi", "opt"])
def test_a_family_that_only_transformers_runs_gives_the_logits_of_its_expansion(family, tmp_path):
    where = write_joint(tmp_path, family, exact_rows=5, expand=True)
    from transformers import AutoModelForCausalLM

    expected = logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "expanded").eval())
    assert np.allclose(logits_of(tiebeam.load(where)), expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_decoder(family, tmp_path):
    where = write_joint(tmp_path, family, exact_rows=5)
    model = tiebeam.load(where)
    assert type(model).__mro__[1].__name__ == type(build(family)).__name__
    expected = Decoder.open(where).logits(IDS)
    assert np.allclose(logits_of(model), expected, atol=2e-5 * np.abs(expected).max())
    assert not np.allclose(Decoder.open(tmp_path / "model").logits(IDS), expected, atol=1e-3)  # the fit is not exact


def test_the_table_and_both_maps_are_parameters_and_nothing_is_stored_twice(joint):
    model = tiebeam.load(joint)
    names = {name: tuple(p.shape) for name, p in model.named_parameters() if not name.startswith("model.layers.")}
    assert names == {
        "tiebeam.table": (96, 24), "tiebeam.embed_map": (24, 32), "tiebeam.head_map": (24, 32),
        "tiebeam.exact_rows": (7,), "tiebeam.exact_embed": (7, 32),
        "model.norm.weight": (32,),
    }  # fmt: skip


def test_the_computed_matrices_are_the_rows_that_are_looked_up_and_scored(joint):
    model = tiebeam.load(joint)
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    with torch.no_grad():
        assert torch.allclose(embed.weight, embed(torch.arange(96)), atol=1e-6)
        h = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(h @ head.weight.T, head(h), atol=1e-5)


def test_it_generates_what_the_decoder_generates(joint):
    model = tiebeam.load(joint)
    made = model.generate(torch.tensor([[5, 9, 11]]), max_new_tokens=8, do_sample=False, eos_token_id=None)[0, 3:]
    assert made.tolist() == [token.id for token in Decoder.open(joint).generate([5, 9, 11], 8, stop=False)]


def test_a_training_step_changes_table_and_maps_and_the_saved_model_loads_again(joint, tmp_path):
    model = tiebeam.load(joint).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.tensor([IDS])
    model(input_ids=batch, labels=batch).loss.backward()
    optimizer.step()
    trained = ["table", "embed_map", "head_map", "exact_embed"]
    after = dict(model.named_parameters())
    assert all(not torch.equal(after[f"tiebeam.{name}"], before[f"tiebeam.{name}"]) for name in trained)
    model.eval().save_pretrained(tmp_path / "saved")
    stored = load_file(tmp_path / "saved" / "model.tiebeam.safetensors")
    assert stored.keys() == load_file(joint / "model.tiebeam.safetensors").keys()
    assert np.array_equal(logits_of(tiebeam.load(tmp_path / "saved")), logits_of(model))
    assert np.allclose(Decoder.open(tmp_path / "saved").logits(IDS), logits_of(model), atol=1e-5)
    assert tiebeam.inspect(tmp_path / "saved").tied


def test_it_is_saved_in_several_files_and_loads_again(joint, tmp_path):
    model = tiebeam.load(joint)
    model.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    files = sorted(path.name for path in (tmp_path / "saved").glob("*.safetensors*"))
    assert "model.safetensors.index.tiebeam.json" in files
    assert len(files) > 2
    assert np.array_equal(logits_of(tiebeam.load(tmp_path / "saved")), logits_of(model))
    assert np.allclose(Decoder.open(tmp_path / "saved").logits(IDS), logits_of(model), atol=1e-5)


ALONE = """
import sys
sys.modules["tiebeam"] = None  # any import of tiebeam fails
import torch, transformers
from safetensors.numpy import save_file
where, out = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(where, trust_remote_code=True, dtype=torch.float32).eval()
ids = torch.arange(4, 40)[None]
with torch.no_grad():
    logits = model(input_ids=ids).logits[0]
made = model.generate(ids[:, :3], max_new_tokens=5, do_sample=False, eos_token_id=None)
model.save_pretrained(out)
again = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True, dtype=torch.float32).eval()
with torch.no_grad():
    assert torch.equal(again(input_ids=ids).logits[0], logits)
plain = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1].replace("joint", "model"))
assert type(plain).__name__ == "LlamaForCausalLM"  # other models of the type are as before
save_file({"logits": logits.numpy(), "made": made.numpy()}, out + "/result.safetensors")
"""


@pytest.mark.parametrize("shards", ["one", "several"])
def test_it_loads_by_trust_remote_code_where_tiebeam_is_not_installed(joint, shards, tmp_path):
    shutil.copytree(joint.parent, tmp_path / "models")
    where = tmp_path / "models" / "joint"
    if shards == "several":
        shutil.rmtree(where)
        tiebeam.load(tmp_path / "models" / "model").save_pretrained(tmp_path / "models" / "model", max_shard_size="9KB")
        (tmp_path / "models" / "model" / "model.safetensors").unlink(missing_ok=True)
        fitted = fit_joint(open_source(tmp_path / "models" / "model"), "w1 w2 w3 w4 " * 100, Recipe(24, power=1.0))
        execute(fitted.plan(), where, durable=False)
        assert (where / "model.safetensors.index.tiebeam.json").exists()
    command = [sys.executable, "-c", ALONE, str(where), str(tmp_path / "out")]
    home = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=home)
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "out" / "result.safetensors")
    decoder = Decoder.open(where)
    assert np.allclose(found["logits"].numpy(), decoder.logits(IDS), atol=1e-5)
    assert found["made"][0, 3:].tolist() == [token.id for token in decoder.generate([4, 5, 6], 5, stop=False)]


def test_without_trust_remote_code_transformers_finds_no_weights(joint):
    from transformers import AutoModelForCausalLM

    with pytest.raises(OSError, match="no file named"):
        AutoModelForCausalLM.from_pretrained(joint, trust_remote_code=False)


def test_the_code_in_a_directory_is_not_run_by_tiebeam(joint, tmp_path):
    shutil.copytree(joint, tmp_path / "m")
    (tmp_path / "m" / "modeling_tiebeam.py").write_text("raise SystemExit('this ran')\n")
    assert np.array_equal(logits_of(tiebeam.load(tmp_path / "m")), logits_of(tiebeam.load(joint)))


def test_files_of_version_0_1_load_too(joint, tmp_path):
    shutil.copytree(joint, tmp_path / "old")
    (tmp_path / "old" / "model.tiebeam.safetensors").rename(tmp_path / "old" / "tiebeam.safetensors")
    (tmp_path / "old" / "modeling_tiebeam.py").unlink()
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    del config["auto_map"]
    config |= {"architectures": ["LlamaForCausalLM"], "tiebeam": {"joint": {"rank": 24}}}
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    assert np.array_equal(logits_of(tiebeam.load(tmp_path / "old")), logits_of(tiebeam.load(joint)))


def test_both_engines_run_it_alike(joint):
    ours, theirs = (open_engine(joint, engine=name) for name in ("numpy", "transformers"))
    assert np.allclose(ours.logits(IDS), theirs.logits(IDS), atol=1e-5)
    for role in ("embed", "head"):
        ids = np.arange(96)
        assert np.allclose(getattr(ours, role).lookup(ids), getattr(theirs, role).lookup(ids), atol=1e-6)
    assert (theirs.vocab, theirs.spec.dim) == (96, 32)
    with pytest.raises(BadRequest, match="cannot replace the table"):
        theirs.with_tables(ours.embed, ours.head)


def test_a_model_without_a_joint_tie_loads_as_usual(joint):
    model = tiebeam.load(joint.parent / "model")
    assert type(model).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [({"rank": -3}, "the rank -3"), ({"rank": 25}, "cannot load"), ("x", "the rank None")],
)
def test_a_damaged_entry_is_refused(joint, tmp_path, entry, sentence):
    shutil.copytree(joint, tmp_path / "m")
    config = json.loads((joint / "config.json").read_text())
    config["tiebeam"] = {"joint": entry}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnreadableInput, match=sentence):
        tiebeam.load(tmp_path / "m")


def test_a_joint_tie_of_version_0_1_with_exact_rows_of_the_head_is_refused(joint, tmp_path):
    shutil.copytree(joint, tmp_path / "old")
    weights = tmp_path / "old" / "model.tiebeam.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, "tiebeam.exact_head": tensors["tiebeam.exact_embed"].clone()}, weights, {"format": "pt"})
    with pytest.raises(UnreadableInput, match=r"version 0\.1.*tie SRC DST --joint"):
        tiebeam.load(tmp_path / "old")


def test_rows_are_not_added_to_a_joint_table(joint):
    with pytest.raises(NotImplementedError, match="before `tiebeam tie --joint`"):
        tiebeam.load(joint).resize_token_embeddings(100)


def test_a_gguf_is_dequantised_for_the_transformers_engine(tmp_path, monkeypatch):
    model = build("llama", tie_word_embeddings=False, **options("llama"))
    source = open_source(write_gguf(model, tmp_path / "m.gguf"), target=tmp_path / "joint")
    shown: list[tuple[int, int]] = []
    monkeypatch.setattr(joint_tie, "_LARGE", 0)
    engines = [open_original(source, name, None, lambda *at: shown.append(at)) for name in ("numpy", "auto")]
    assert engine_name(engines[1]) == "transformers"
    assert np.allclose(engines[0].logits(IDS), engines[1].logits(IDS), atol=1e-5)
    assert len({total for _, total in shown[-3:]}) == 1
    assert shown[-1][0] == shown[-1][1] > 10  # a step for every tensor


def test_a_device_that_is_not_there_is_refused_in_one_sentence(joint):
    with pytest.raises(BadRequest, match="device 'cuda' cannot be used"):
        fit_joint(open_source(joint.parent / "model"), "w1 w2 " * 400, rank=8, device="cuda")


def test_the_doctor_has_no_finding_and_offers_no_fix(joint):
    assert tiebeam.diagnose(joint).findings == ()
