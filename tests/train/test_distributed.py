"""Several ranks train the same model as one: same losses and weights, an intact tie, states that other ranks resume.

In float64 only the order of additions differs, so the tolerances are tight: 1e-9 of a loss, 1e-7 of a weight after 20
steps. All runs of one number of ranks are trained in one launch.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tiebeam
from helpers import distributed_worker
from helpers.small_corpus import small_corpus
from tiebeam import Tie
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train import Distribution, RunDirectory, Settings, train
from tiebeam.train.distributed_muon import newton_schulz_cost, owners

pytestmark = pytest.mark.timeout(900)  # the first test waits for all launches
SOURCES = str(Path(tiebeam.__file__).parents[1])
TINY: dict[str, Any] = {
    "layers": 2,
    "dim": 32,
    "heads": 2,
    "kv_heads": 1,
    "mlp_dim": 48,
    "context": 32,
    "batch_tokens": 256,
}
# 301 tokens and 3 rows of skip weights divide by neither 2 nor 4.
RUNS = {
    "tied": {},
    "untied": {"tie": False},
    "tied-golf": {"arch": "golf", "softcap": 15.0, "layers": 6},
    "untied-adamw": {"tie": False, "optimizer": "adamw"},
    "accumulated": {"accumulate": 2},
    "split": {"tie": 0.5},
    "bigrams": {"bigram_rows": 63, "embed_norm": True, "softcap": 15.0},
    "pseudo-inverse": {"pseudo_inverse": True, "coupled_adam": True},
}
LAYOUTS = {
    (2, "ddp"): list(RUNS),
    (2, "fsdp"): ["tied", "untied", "tied-golf", "untied-adamw", "accumulated", "bigrams"],
    (2, "vocab"): ["tied", "untied", "tied-golf", "accumulated", "split", "bigrams"],
    (4, "ddp"): ["tied"],
    (4, "fsdp"): ["untied", "tied-golf"],
    (4, "vocab"): ["tied", "untied-adamw"],
}
CASES = [(ranks, layout, name) for (ranks, layout), names in LAYOUTS.items() for name in names]


def settings(**changes):
    return Settings(
        **{**TINY, "steps": 20, "log_every": 1, "threads": 1, "device": "cpu", "validate_every": 0.5, **changes}
    )


def losses(run):
    return [record["loss"] for record in RunDirectory.open(run).metrics() if "loss" in record]


def start(ranks, *arguments):
    """Start torchrun, as a user would; one thread per rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train_all(ranks, corpus, runs, where):
    plan = where / f"plan-{ranks}.json"
    plan.write_text(json.dumps({"corpus": str(corpus.path), "runs": runs, "looks": str(where / f"looks-{ranks}.json")}))
    started = start(ranks, distributed_worker.__file__, str(plan))
    _, printed = started.communicate(timeout=400)
    assert started.returncode == 0, printed[-3000:]


def wait_for(condition, started):
    for _ in range(3600):
        if condition():
            return
        assert started.poll() is None, started.communicate()[1]
        time.sleep(0.05)
    started.kill()
    raise AssertionError("timed out after three minutes")


def pid_of_rank(rank, started):
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == started.pid and f"\0RANK={rank}\0" in (process / "environ").read_text():
                return int(process.name)
    raise AssertionError(f"torchrun has no child of rank {rank}")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return small_corpus(tmp_path_factory, vocab=301)


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """The directory of all runs: alone/NAME, 2/LAYOUT/NAME, 4/LAYOUT/NAME, and the interrupted and resumed ones."""
    where = tmp_path_factory.mktemp("runs")
    for name, changes in RUNS.items():
        distributed_worker.make(plan_of(where / "alone" / name, changes), corpus, Distribution())
    distributed_worker.make(plan_of(where / "alone" / "float32", {}, exact=False), corpus, Distribution())
    for name in ("1-to-2", "1-to-2-sharded", "1-to-2-rows"):
        distributed_worker.make(plan_of(where / name, {}, stop_at=8), corpus, Distribution())

    two = cases(2, where)
    two += [
        plan_of(where / "2" / "ddp" / "float32", {}, exact=False),
        plan_of(where / "by the clock", {"steps": None, "minutes": 0.02}),
        plan_of(where / "1-to-2", {}, resume=True),
        plan_of(where / "1-to-2-sharded", {}, "fsdp", resume=True),
        plan_of(where / "1-to-2-rows", {}, "vocab", resume=True),
        plan_of(where / "2-to-1", {}, stop_at=8),
        plan_of(where / "2-to-1-sharded", {}, "fsdp", stop_at=8),
        plan_of(where / "2-to-1-split", RUNS["split"], stop_at=13),
        plan_of(where / "2-to-1-rows", {}, "vocab", stop_at=8),
        plan_of(where / "2-to-4", {}, "fsdp", stop_at=8),
        plan_of(where / "2-to-4-rows", {}, "vocab", stop_at=8),
    ]
    train_all(2, corpus, two, where)
    for name, changes in (
        ("2-to-1", {}),
        ("2-to-1-sharded", {}),
        ("2-to-1-rows", {}),
        ("2-to-1-split", RUNS["split"]),
    ):
        assert [p.name for p in (where / name).glob("resume*")] == [f"resume-{13 if changes else 8}"]
        distributed_worker.make(plan_of(where / name, changes, resume=True), corpus, Distribution())

    four = cases(4, where)
    four += [  # saved by vocabulary sharding, resumed by FSDP, and the other way round
        plan_of(where / "2-to-4", {}, "vocab", resume=True),
        plan_of(where / "2-to-4-rows", {}, "fsdp", resume=True),
    ]
    train_all(4, corpus, four, where)
    return where


def cases(ranks, where):
    return [plan_of(where / str(n) / layout / name, RUNS[name], layout) for n, layout, name in CASES if n == ranks]


def plan_of(out, changes, layout="ddp", **options):
    return {"out": str(out), "settings": settings(**changes).to_dict(), "layout": layout, **options}


@pytest.mark.parametrize(("ranks", "layout", "name"), CASES)
def test_several_ranks_train_the_same_model_as_one(runs, ranks, layout, name):
    alone, together = runs / "alone" / name, runs / str(ranks) / layout / name
    assert len(losses(together)) == 20
    assert losses(together) == pytest.approx(losses(alone), rel=1e-9)
    expected, found = load_file(alone / "model.safetensors"), load_file(together / "model.safetensors")
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        torch.testing.assert_close(
            found[tensor], value, rtol=0, atol=1e-7, msg=lambda m, tensor=tensor: f"{tensor}: {m}"
        )


def test_float32_losses_agree_over_20_steps(runs):
    assert losses(runs / "2" / "ddp" / "float32") == pytest.approx(losses(runs / "alone" / "float32"), rel=2e-3)


def test_a_run_given_in_minutes_ends_on_the_same_step_on_all_ranks(runs):
    records = list(RunDirectory.open(runs / "by the clock").metrics())  # it would not have ended otherwise
    assert records[-1]["done"] == 1
    assert records[-1]["seconds"] >= 1.2


@pytest.mark.parametrize(("ranks", "layout", "name"), CASES)
def test_the_run_directory_matches_a_single_rank(runs, ranks, layout, name):
    alone, together = runs / "alone" / name, runs / str(ranks) / layout / name
    there = {path.name for path in together.iterdir()} - {"resume-20"}
    assert there == {path.name for path in alone.iterdir()} - {"resume.safetensors"}
    assert (together / "config.json").read_text() == (alone / "config.json").read_text()
    report = tiebeam.inspect(together)
    assert report.tie is (Tie.UNTIED if name.startswith(("untied", "split", "pseudo")) else Tie.SHARED)
    ends = ("lm_head.weight", "tok_emb.weight", "embed_tokens.weight")
    stored = [tensor for tensor in load_file(together / "model.safetensors") if tensor.endswith(ends)]
    assert len(stored) == (1 if report.tie is Tie.SHARED else 2)


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "vocab"])
@pytest.mark.parametrize("name", ["tied", "untied"])
def test_metrics_match_a_single_rank(runs, layout, name):
    alone, together = (list(RunDirectory.open(runs / place / name).metrics()) for place in ("alone", f"2/{layout}"))
    assert [record["step"] for record in together] == [record["step"] for record in alone]
    for expected, found in zip(alone, together, strict=True):
        for key in expected.keys() - {"seconds", "tokens_per_second"}:
            assert found[key] == pytest.approx(expected[key], rel=1e-6, abs=1e-9), key


RESUMED = ["1-to-2", "1-to-2-sharded", "1-to-2-rows", "2-to-1", "2-to-1-sharded", "2-to-1-rows", "2-to-1-split",
           "2-to-4", "2-to-4-rows"]  # fmt: skip


@pytest.mark.parametrize("name", RESUMED)
def test_another_number_of_ranks_resumes_a_state(runs, name):
    whole = runs / "alone" / ("split" if "split" in name else "tied")
    assert losses(runs / name) == pytest.approx(losses(whole), rel=1e-9)
    assert len(list((runs / name).glob("resume*"))) == 1  # the older states are gone


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("layout", ["ddp", "fsdp", "vocab"])
def test_the_tie_is_one_parameter_at_every_stage_on_every_rank(runs, ranks, layout):
    for rank in json.loads((runs / f"looks-{ranks}.json").read_text()):
        seen = rank[layout]
        assert seen["wrapped"] == seen["stepped"] == []  # the guard's findings
        assert seen["unwraps"]
        assert seen["same parameter"]
        assert seen["held by optimizers"] == 1
        assert seen["tables saved"] == 1


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_gradients_are_synchronized_once_per_step(runs, layout):
    for rank in json.loads((runs / "looks-2.json").read_text()):
        one, three = (
            {kind: n for kind, n in rank[layout][f"exchanged for {number}"].items() if "reduce" in kind}
            for number in (1, 3)
        )
        assert one == three != {}


def test_a_tied_table_gets_one_gradient_per_backward(runs):
    for rank in json.loads((runs / "looks-2.json").read_text()):
        assert rank["ddp"]["deliveries"] == rank["vocab"]["deliveries"] == 4  # 1 + 3 micro-batches


def test_muon_matrices_are_balanced_by_cost():
    shapes = [torch.Size(shape) for shape in [(64, 64)] * 5 + [(64, 256)] * 3 + [(8, 8)] * 7]
    for world in (1, 2, 4):
        costs = [0] * world
        for shape, rank in zip(shapes, owners(shapes, world), strict=True):
            costs[rank] += newton_schulz_cost(shape)
        assert max(costs) <= sum(costs) / world + max(newton_schulz_cost(s) for s in shapes)
        assert world == 1 or min(costs) > 0


def test_a_distributed_state_holds_no_pickle_and_one_table(runs):
    saved = runs / "2" / "fsdp" / "tied" / "resume-20"
    assert {path.suffix for path in saved.iterdir()} == {".json", ".safetensors"}
    tensors, facts = RunDirectory(saved.parent).load_state()
    assert facts["step"] == 20
    assert [name for name in tensors if name.startswith("model.") and tensors[name].shape[0] == 301] == [
        "model.model.embed_tokens.weight"
    ]


def test_a_damaged_distributed_state_is_refused(runs, tmp_path):
    shutil.copytree(runs / "2" / "fsdp" / "tied", tmp_path / "run")
    shard = next((tmp_path / "run" / "resume-20").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(UnreadableInput, match="damaged"):
        RunDirectory(tmp_path / "run").load_state()


def test_a_state_without_facts_is_incomplete(runs, tmp_path):
    shutil.copytree(runs / "2" / "fsdp" / "tied", tmp_path / "run")
    shutil.copytree(tmp_path / "run" / "resume-20", tmp_path / "run" / "resume-30")
    (tmp_path / "run" / "resume-30" / "facts.json").unlink()
    assert RunDirectory(tmp_path / "run").saved_state().name == "resume-20"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the rank through /proc")
def test_a_killed_rank_ends_the_run_with_one_message_and_a_state_to_resume(corpus, tmp_path):
    run = tmp_path / "run"
    shape = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    command = ["-m", "tiebeam", "train", "--quiet", "--threads=1", "--device=cpu", f"--out={run}"]
    started = start(2, *command, str(corpus.path), *shape, "--minutes=5", "--save-every=0.5")
    wait_for(lambda: any(run.glob("resume-*")), started)
    os.kill(pid_of_rank(1, started), signal.SIGKILL)
    _, printed = started.communicate(timeout=120)
    assert started.returncode != 0
    messages = [line for line in printed.splitlines() if line.startswith("tiebeam: ")]
    assert len(messages) == 1, printed
    step = int(RunDirectory(run).load_state()[1]["step"])
    assert messages[0] == (
        f"tiebeam: rank 1 of 2 is gone; the state of step {step:,} is saved, "
        f"resume with: torchrun --nproc-per-node 2 -m tiebeam train --resume --out {run}"
    )
    ours = Path(tiebeam.__file__).parent
    assert str(ours) not in printed  # no traceback from here
    result = train(settings(steps=step + 2), corpus, run, resume=True)
    assert result.finished
    assert result.steps == step + 2


def test_one_rank_needs_no_torchrun_and_sharding_needs_it(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert Distribution.from_environment().world_size == 1
    for flag in ("shard", "shard_vocab"):
        with pytest.raises(BadRequest, match="torchrun --nproc-per-node 2 -m tiebeam train --shard"):
            Distribution.from_environment(**{flag: True})
    with pytest.raises(BadRequest, match="shard_vocab=True"):
        Distribution.from_environment(shard=True, shard_vocab=True)


def test_an_indivisible_batch_is_refused_with_one_that_divides():
    with pytest.raises(BadRequest, match="batch_tokens=288"):
        Distribution(0, 3).check(settings())
    Distribution(0, 3).check(settings(batch_tokens=288))


def test_untying_during_the_run_is_refused_with_fsdp():
    with pytest.raises(BadRequest, match=r"tie=0\.5.*--shard"):
        Distribution(0, 2, layout="fsdp").check(settings(tie=0.5))
    Distribution(0, 2).check(settings(tie=0.5))
    Distribution(0, 2, layout="vocab").check(settings(tie=0.5))
