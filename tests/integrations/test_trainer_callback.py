"""TiebeamCallback in transformers' real Trainer: a healthy run passes, a broken tie stops it with its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import tiebeam
from helpers.tiny_models import VOCAB, build
from tiebeam.errors import BadRequest, TieBroken
from tiebeam.integrations.transformers import TiebeamCallback


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, VOCAB, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class UntieAt(TrainerCallback):
    """Gives the head its own parameter after a step, as a careless resize does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            head = kwargs["model"].get_output_embeddings()
            head.weight = torch.nn.Parameter(head.weight.detach().clone())


def trainer(
    where: Path, callbacks: list[Any], tied: bool = True, kind: Any = Trainer, model: Any = None, **changes: Any
) -> Any:
    arguments = TrainingArguments(
        output_dir=str(where), per_device_train_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, **{"save_strategy": "no", "max_steps": 4, **changes},
    )  # fmt: skip
    model = model or build("llama", tie_word_embeddings=tied)
    return kind(model, arguments, train_dataset=Sentences(), callbacks=callbacks)


@pytest.mark.parametrize("tied", [True, False])
def test_a_healthy_run_with_checkpoints_passes_and_logs_the_pair(tmp_path: Path, tied: bool) -> None:
    run = trainer(tmp_path, [TiebeamCallback()], tied, save_strategy="steps", save_steps=2, logging_steps=2)
    run.train()
    assert run.state.global_step == 4
    assert tiebeam.inspect(tmp_path / "checkpoint-4").tied is tied
    logs = [entry for entry in run.state.log_history if "loss" in entry]
    assert len(logs) == 2
    for entry in logs:
        assert 0 < entry["tie/head_gradient_share"] < 1
        norm = run.model.model.embed_tokens.weight.norm(dim=1).median().item()
        assert entry["tie/embed_row_norm"] == pytest.approx(norm, rel=0.2)
        assert ("tie/head_row_norm" in entry) != tied
        assert 0 <= entry["tie/untrained_rows"] <= 2 * VOCAB


def test_a_run_stops_at_the_step_that_unties_the_model(tmp_path: Path) -> None:
    run = trainer(tmp_path, [UntieAt(2), TiebeamCallback()])
    with pytest.raises(TieBroken, match=r"^TB501: .*step 2"):
        run.train()
    assert run.state.global_step == 2


def test_with_every_3_the_break_of_step_1_is_named_at_step_3_and_a_save_is_checked_before(tmp_path: Path) -> None:
    run = trainer(tmp_path, [UntieAt(1), TiebeamCallback(every=3)])
    with pytest.raises(TieBroken, match=r"^TB501: .*after step 3"):
        run.train()
    run = trainer(tmp_path, [UntieAt(1), TiebeamCallback(every=3)], save_strategy="steps", save_steps=2)
    with pytest.raises(TieBroken, match=r"^TB501: .*after step 2, before the save"):
        run.train()


def test_a_model_that_was_loaded_torn_is_named_before_training(tmp_path: Path) -> None:
    model = build("llama", tie_word_embeddings=True)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 1)
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    with pytest.raises(TieBroken, match=r"^TB501: .*after load"):
        Trainer(model, arguments, train_dataset=Sentences(), callbacks=[TiebeamCallback()])


def test_a_tie_lost_while_the_trainer_prepares_the_model_is_named(tmp_path: Path) -> None:
    class Careless(Trainer):
        def _wrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            state = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(state, assign=True)
            return super()._wrap_model(model, *args, **kwargs)

    with pytest.raises(TieBroken, match=r"^TB501: .*after prepare"):
        trainer(tmp_path, [TiebeamCallback()], kind=Careless).train()


def test_a_resize_that_makes_a_new_head_is_named(tmp_path: Path) -> None:
    run = trainer(tmp_path, [TiebeamCallback()], tied=False)
    run.model.resize_token_embeddings(VOCAB + 8)
    run.model.lm_head = torch.nn.Linear(32, VOCAB + 8, bias=False)
    with pytest.raises(TieBroken, match=r"^TB512: .*head changed after resize"):
        run.train()


def test_a_resize_that_keeps_the_rows_passes(tmp_path: Path) -> None:
    run = trainer(tmp_path, [TiebeamCallback()])
    run.model.resize_token_embeddings(VOCAB + 8)
    run.train()


def test_a_tie_lost_on_resume_is_named_and_other_values_too(tmp_path: Path) -> None:
    class Assigns(Trainer):
        def _load_optimizer_and_scheduler(self, *args: Any, **kwargs: Any) -> None:
            super()._load_optimizer_and_scheduler(*args, **kwargs)
            state = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.model.load_state_dict(state, assign=True)

    class Forgets(Trainer):
        def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            """Loads nothing: the run goes on from the first weights."""

    saves: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, [TiebeamCallback()], max_steps=2, learning_rate=0.1, **saves).train()
    trainer(tmp_path, [TiebeamCallback()], **saves).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for kind, match in ((Assigns, r"^TB501: .*after resume"), (Forgets, r"^TB514: .*model's values.*after resume")):
        run = trainer(tmp_path, [TiebeamCallback()], kind=kind, **saves)
        with pytest.raises(TieBroken, match=match):
            run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_saved_checkpoint_that_lost_the_tie_stops_the_run(tmp_path: Path) -> None:
    class Tamper(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            config = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "config.json"
            config.write_text(config.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))

    run = trainer(tmp_path, [Tamper(), TiebeamCallback()], save_strategy="steps", save_steps=2)
    with pytest.raises(TieBroken, match=r"^TB514: .*headless \(TB102\).*after save"):
        run.train()
    assert run.state.global_step == 2


def test_a_tracker_gets_the_numbers_of_an_attached_callback(tmp_path: Path) -> None:
    class Tracker(TrainerCallback):
        seen: ClassVar[list[str]] = []

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seen.extend(kwargs["logs"])

    run = TiebeamCallback().attach(trainer(tmp_path, [Tracker()], logging_steps=1))
    run.train()
    assert "tie/head_gradient_share" in Tracker.seen


def test_a_model_inside_peft_is_checked_and_its_adapter_is_saved(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(build("llama", tie_word_embeddings=True), LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.warns(UserWarning, match="TB506"):  # the tied matrix is frozen, the adapter is not
        run = trainer(tmp_path, [TiebeamCallback()], model=model, save_strategy="steps", save_steps=2)
    run.train()
    assert (tmp_path / "checkpoint-4" / "adapter_config.json").is_file()
    broken = trainer(tmp_path, [UntieAt(2), TiebeamCallback()], model=model)
    with pytest.raises(TieBroken, match=r"^TB501: .*step 2"):
        broken.train()


@pytest.mark.exhaustive
def test_a_compiled_model_is_checked_inside_its_wrapper(tmp_path: Path) -> None:
    compiled: dict[str, Any] = {"torch_compile": True, "torch_compile_backend": "eager"}
    trainer(tmp_path, [TiebeamCallback()], save_strategy="steps", save_steps=2, **compiled).train()
    assert tiebeam.inspect(tmp_path / "checkpoint-4").tied
    with pytest.raises(TieBroken, match=r"^TB501: .*step 2"):
        trainer(tmp_path, [UntieAt(2), TiebeamCallback()], **compiled).train()


@pytest.mark.exhaustive
def test_trl_s_trainer_is_watched_too(tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from helpers.tiny_tokenizers import write_tokenizer

    write_tokenizer(tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), pad_token="!", eos_token="!")
    rows = Dataset.from_list([{"input_ids": list(range(4, 12))} for _ in range(16)])
    for breaker, message in (([], None), ([UntieAt(2)], r"^TB501: .*step 2")):
        arguments = SFTConfig(
            output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True,
            disable_tqdm=True, save_strategy="steps", save_steps=3, logging_steps=1, bf16=False,
            gradient_checkpointing=False,
        )  # fmt: skip
        run = SFTTrainer(
            build("llama", tie_word_embeddings=True), arguments, train_dataset=rows,
            processing_class=tokenizer, callbacks=[*breaker, TiebeamCallback()],
        )  # fmt: skip
        if message is None:
            run.train()
            assert any("tie/untrained_rows" in entry for entry in run.state.log_history)
        else:
            with pytest.raises(TieBroken, match=message):
                run.train()


def test_every_must_be_positive() -> None:
    with pytest.raises(BadRequest, match="every must be at least 1, not 0"):
        TiebeamCallback(every=0)
