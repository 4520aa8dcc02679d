"""The families' files: complete, consistent, and named as transformers and llama.cpp name them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tiebeam.families import gguf as gguf_module
from tiebeam.families.registry import families, lookup

RUN = {name: family for name, family in families().items() if family.spec is not None}


@pytest.mark.parametrize("name", families())
def test_every_family_has_a_layer_spec_or_a_parameter_count(name: str) -> None:
    family = families()[name]
    assert (family.spec is None) != (family.non_embedding is None)
    assert (family.names is None) == (family.spec is None)
    assert lookup(name) is not None or name in ("tiebeam_golf", "tiebeam_gpt")


@pytest.mark.parametrize("name", [name for name, family in families().items() if family.architecture])
def test_the_class_name_is_that_of_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    from transformers.models.auto import modeling_auto

    tasks = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM")
    known = {getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").get(name) for task in tasks}
    assert families()[name].architecture in known


def test_gguf_architectures_are_those_of_llama_cpp_and_unique() -> None:
    gguf = pytest.importorskip("gguf")
    stored = [(f.gguf.architecture, f.gguf.experts) for f in families().values() if f.gguf is not None]
    assert len(stored) == len(set(stored))
    assert {architecture for architecture, _ in stored} <= set(gguf.MODEL_ARCH_NAMES.values())


def test_gguf_names_of_the_layers_are_those_of_llama_cpp() -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {name.format(bid="{i}") for name in gguf.TENSOR_NAMES.values() if name.startswith("blk.")}
    for names in (gguf_module.NAMES, gguf_module.FUSED_QKV_NAMES):
        assert {names.layer + role for role in names.roles.values()} <= theirs


def test_llama_with_experts_is_mixtral() -> None:
    plain = {"general.architecture": "llama"}
    for metadata, expected in ((plain, "llama"), ({**plain, "llama.expert_count": 8}, "mixtral")):
        family = gguf_module.gguf_family(metadata)
        assert family is not None
        assert family.model_type == expected


def test_families_need_no_numpy_and_no_checkpoint() -> None:
    program = (
        "import sys; from tiebeam.families.registry import families; assert families(); "
        "print([m for m in ('numpy', 'tiebeam.checkpoint', 'tiebeam.decode') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
