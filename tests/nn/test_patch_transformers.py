"""`patch(model)`: the fused loss inside real causal LMs of transformers gives the loss and gradients of the class."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers.tiny_models import CAUSAL, VOCAB, build
from tiebeam.errors import BadRequest
from tiebeam.nn import patch, unpatch

NAMED = ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_neox", "mistral", "olmo2", "granite",
         "cohere"]  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {  # factors that matter: a wrong one would change the loss
    "gemma2": {"final_logit_softcapping": 3.0},
    "gemma3_text": {"final_logit_softcapping": 2.0},
    "granite": {"logits_scaling": 0.25},
    "cohere": {"logit_scale": 4.0},
    "cohere2": {"logit_scale": 4.0},
}


def model_and_batch(
    model_type: str = "llama", tied: bool = True, **changes: Any
) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model whose logits are not all alike, without dropout, and a batch of which some labels do not count."""
    known = {key: 0.0 for key in build(model_type).config.to_dict() if "drop" in key and key != "classifier_dropout"}
    model = build(model_type, tie_word_embeddings=tied, **known, **SPECIAL.get(model_type, {}), **changes)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(10)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, VOCAB, (3, 9), generator=generator)
    labels = ids.clone()
    labels[0, :4] = -100
    labels[2, 6:] = -100
    return model.train(), {"input_ids": ids, "labels": labels}


def loss_and_gradients(model: nn.Module, **inputs: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(model: nn.Module, **inputs: Any) -> None:
    """Patched and unpatched agree to 1e-5 of the largest gradient."""
    expected, gradients = loss_and_gradients(model, **inputs)
    assert patch(model) is model
    assert model(**inputs).logits is None
    found, fused = loss_and_gradients(model, **inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert fused.keys() == gradients.keys()
    for name, gradient in gradients.items():
        near = 1e-5 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(fused[name], gradient, rtol=1e-5, atol=near, msg=lambda text, name=name: name + text)
    unpatch(model)
    assert torch.equal(model(**inputs).loss, expected)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", NAMED)
def test_loss_and_gradients_are_those_of_the_class(model_type: str, tied: bool) -> None:
    model, batch = model_and_batch(model_type, tied)
    assert_same(model, **batch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_type", [name for name in CAUSAL if name not in NAMED])
def test_every_other_causal_lm_gives_the_same_too(model_type: str) -> None:
    model, batch = model_and_batch(model_type)
    assert_same(model, **batch)


@pytest.mark.parametrize("items", [7, torch.tensor(11), torch.tensor([13])])
def test_the_number_of_items_in_the_batch_divides_the_sum(items: Any) -> None:
    model, batch = model_and_batch()
    assert_same(model, **batch, num_items_in_batch=items)


def test_labels_that_are_shifted_already_are_not_shifted_again() -> None:
    model, batch = model_and_batch()
    shifted = nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:].contiguous()
    assert_same(model, **batch, shift_labels=shifted)


def test_the_auxiliary_loss_of_a_mixture_of_experts_is_kept() -> None:
    model, batch = model_and_batch("mixtral", output_router_logits=True, router_aux_loss_coef=0.5)
    assert_same(model, **batch)


def test_gradients_accumulate_over_micro_batches() -> None:
    model, batch = model_and_batch()
    grads = []
    for fused in (False, True):
        (patch if fused else unpatch)(model)
        model.zero_grad(set_to_none=True)
        for row in range(3):
            inputs = {name: value[row : row + 1] for name, value in batch.items()}
            model(**inputs, num_items_in_batch=20).loss.backward()
        grads.append(model.lm_head.weight.grad.clone())
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", ["patch", "peft"])
def test_a_model_inside_peft_gives_the_same(first: str) -> None:
    from peft import LoraConfig, get_peft_model

    model, batch = model_and_batch()
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    if first == "patch":
        patch(model)
    wrapped = get_peft_model(model, config).train()
    assert (wrapped(**batch).logits is None) == (first == "patch")
    unpatch(wrapped)
    assert_same(wrapped, **batch)


def test_the_copy_of_the_head_that_peft_trains_is_the_head() -> None:
    from peft import LoraConfig, get_peft_model

    model, batch = model_and_batch(tied=False)
    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])).train()
    with torch.no_grad():
        wrapped.get_base_model().lm_head.modules_to_save["default"].weight.mul_(0.5)
    assert_same(wrapped, **batch)


def test_a_head_with_lora_keeps_its_logits_and_its_loss() -> None:
    from peft import LoraConfig, get_peft_model

    model, batch = model_and_batch(tied=False)
    config = LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    wrapped = get_peft_model(model, config).train()
    expected = wrapped(**batch).loss
    with pytest.warns(UserWarning, match="not one matrix"):
        found = patch(wrapped)(**batch)
    assert torch.equal(found.loss, expected)
    assert found.logits is not None


def test_without_labels_or_in_evaluation_the_model_gives_logits() -> None:
    model, batch = model_and_batch()
    ids = batch["input_ids"]
    plain = model(input_ids=ids).logits
    patch(model)
    assert torch.equal(model(input_ids=ids).logits, plain)
    model.eval()
    assert model(**batch).logits.shape == (*ids.shape, VOCAB)
    assert patch(model, evaluation=True)(**batch).logits is None
    assert model.generate(ids[:, :4], max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (3, 7)


def test_a_tuple_is_returned_where_the_caller_asks_for_one() -> None:
    model, batch = model_and_batch()
    expected = model(**batch, return_dict=False)
    found = patch(model)(**batch, return_dict=False)
    torch.testing.assert_close(found[0], expected[0])
    assert len(found) == len(expected) - 1


def test_a_copy_of_a_patched_model_is_patched_and_independent() -> None:
    model, batch = model_and_batch()
    twin = copy.deepcopy(patch(model))
    with torch.no_grad():
        twin.lm_head.weight.zero_()
    losses = [one(**batch).loss.item() for one in (twin, model)]
    assert losses[0] == pytest.approx(math.log(VOCAB))
    assert losses[1] != pytest.approx(losses[0])
    unpatch(twin)
    assert twin(**batch).logits is not None
    assert model(**batch).logits is None


def test_patching_twice_and_unpatching_an_unpatched_model_are_harmless() -> None:
    model, batch = model_and_batch()
    patch(patch(model))
    unpatch(unpatch(model))
    assert "forward" not in vars(model)
    assert model(**batch).logits is not None


def test_the_forward_of_another_patch_is_restored() -> None:
    model, _ = model_and_batch()
    own = model.forward
    model.forward = lambda *args, **kwargs: own(*args, **kwargs)
    other = model.forward
    patch(model)
    unpatch(model)
    assert model.forward is other


def test_a_class_that_scales_its_logits_unknown_to_us_is_refused_at_the_first_call() -> None:
    model, batch = model_and_batch()
    plain = model.loss_function
    patch(model)
    model.lm_head.register_forward_hook(lambda module, args, out: out * 3)
    with pytest.raises(BadRequest, match="LlamaForCausalLM computes its logits in a way that is not known of 'llama'"):
        model(**batch)
    assert unpatch(model).loss_function is plain


def test_a_model_without_a_known_loss_is_refused() -> None:
    with pytest.raises(BadRequest, match="BertForMaskedLM"):
        patch(build("bert"))
    with pytest.raises(BadRequest, match="is not a Hugging Face model"):
        patch(nn.Linear(2, 2))


def test_the_trainer_gets_the_same_losses_and_still_evaluates(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    def losses(fused: bool) -> tuple[list[float], float]:
        model, batch = model_and_batch()
        if fused:
            patch(model)
        rows = [{name: value[i % 3] for name, value in batch.items()} for i in range(12)]
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=1, gradient_accumulation_steps=2,
            logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", seed=1,
        )  # fmt: skip
        seen: list[Any] = []

        def shape(prediction: Any) -> dict[str, float]:
            seen.append(prediction.predictions.shape)
            return {}

        run = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:3], compute_metrics=shape)
        run.train()
        after = run.evaluate()["eval_loss"]
        assert seen == [(3, 9, VOCAB)]
        return [entry["loss"] for entry in run.state.log_history if "loss" in entry], after

    plain, fused = losses(False), losses(True)
    assert fused[0] == pytest.approx(plain[0], rel=1e-4)
    assert fused[1] == pytest.approx(plain[1], rel=1e-4)


def test_a_head_sharded_with_the_root_is_fused_and_one_in_a_group_of_its_own_is_not(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        model, batch = model_and_batch()
        expected = model(**batch).loss.item()
        fully_shard(model, mesh=mesh)
        fused = patch(model)(**batch)
        assert fused.loss.item() == pytest.approx(expected, rel=1e-5)
        fused.loss.backward()
        apart, batch = model_and_batch(tied=False)
        expected = apart(**batch).loss.item()
        fully_shard(apart.lm_head, mesh=mesh)
        with pytest.warns(UserWarning, match="the LM head is a FSDPLinear and not one matrix"):
            assert patch(apart)(**batch).loss.item() == pytest.approx(expected, rel=1e-5)
    finally:
        dist.destroy_process_group()


def test_accelerates_autocast_keeps_the_patch_and_unpatch_still_works() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    model, batch = model_and_batch()
    AcceleratorState._reset_state()  # one per process: another test may have set it
    try:
        prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(patch(model))
        assert prepared(**batch).logits is None
        assert unpatch(prepared)(**batch).logits is not None
    finally:
        AcceleratorState._reset_state()


def test_a_step_at_a_vocabulary_of_128k_takes_less_than_half_the_memory_of_the_plain_one() -> None:
    """The whole process, libraries included, as bench/patch.py measures it."""
    program = "import json, patch; print(json.dumps([patch.memory(p, 1024)['peak'] for p in (True, False)]))"
    bench = Path(__file__).parents[2] / "bench"
    done = subprocess.run([sys.executable, "-c", program], cwd=bench, capture_output=True, text=True, check=True)
    fused, plain = json.loads(done.stdout)
    assert fused < 0.5 * plain


@pytest.mark.peer
def test_transformers_4_gives_the_same_losses() -> None:
    from peers import environments

    python = environments.python("transformers4")
    if python is None:
        pytest.skip("transformers 4 is not built; run `python tests/peers/environments.py transformers4`")
    program = f"""
import json, torch
from helpers.tiny_models import build
from tiebeam.nn import patch
found = {{}}
for model_type in {NAMED!r}:
    model = build(model_type, **{SPECIAL!r}.get(model_type, {{}})).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids = torch.randint(4, 90, (2, 8))
    call = dict(input_ids=ids, labels=ids, num_items_in_batch=5)
    plain, fused = model(**call).loss.item(), patch(model)(**call)
    found[model_type] = [plain, fused.loss.item(), fused.logits is None]
print(json.dumps(found))
"""
    root = Path(__file__).parents[2]
    path = f"{root / 'src'}:{root / 'tests'}"
    done = subprocess.run([python, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    for model_type, (plain, fused, without_logits) in json.loads(done.stdout.splitlines()[-1]).items():
        assert fused == pytest.approx(plain, rel=1e-5), model_type
        assert without_logits, model_type
