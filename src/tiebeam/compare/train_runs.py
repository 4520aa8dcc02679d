"""Train the runs of a comparison in turns, each in its own run directory below `out`.

The variants of one width, vocabulary and seed are open at the same time in this process and take turns of a few steps,
so a stall of the machine hits all of them alike. Each run has its own clock. They see the same batches, and every
weight outside the vocabulary matrices starts with the same value. Runs do not depend on each other, so a run that was
interrupted and resumed ends with the same losses. Finished runs are kept, and a directory with other content is an
error. The number of threads is chosen by the first call for all runs. Between turns it is corrected for all of them at
once if others take or free a core; a given number is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam._fs import Kind, check_replaceable, occupy, write_text
from tiebeam.compare.model_widths import check_widths
from tiebeam.compare.variants import Variant, VariantConfig, variant_configs
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.train import Distribution, LearningRates, RunDirectory, Settings
from tiebeam.train.loop import Training, training
from tiebeam.train.run_directory import KIND as RUN_KIND
from tiebeam.train.run_directory import RUN

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT
    from tiebeam.train.cpu_threads import ThreadWatch

PLAN, MEMORY, SWEEP = "compare.json", "memory.json", "sweep.json"
SLICE_STEPS = 5
_OURS = re.compile(r"compare\.json|sweep\.json|report\.(json|html)|figures/[\w-]+\.(png|svg)|[a-z0-9_-]+-s\d+(\.tbp)?")


def _is_ours(name: str) -> bool:
    run, _, file = name.partition("/")
    return bool(_OURS.fullmatch(name) or (_OURS.fullmatch(run) and RUN_KIND.owns(file)))


KIND = Kind("a comparison of tiebeam compare", lambda path: (path / PLAN).is_file(), _is_ours)
OnRecord = Callable[["Run", dict[str, Any]], None]


class Interrupted(TiebeamError):
    """Training was interrupted; finished steps are kept and can be resumed."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: a variant at a width of the ladder, with a vocabulary and a seed, and its directory."""

    config: VariantConfig
    width: int
    seed: int
    path: Path
    corpus: Corpus

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def variant(self) -> str:
        return self.config.variant.name

    @property
    def vocab(self) -> int:
        return self.corpus.vocab

    @property
    def settings(self) -> Settings:
        return self.config.settings


def check_directory(out: Path, force: bool = False) -> None:
    """Refuse a directory that holds anything but a comparison; `force` replaces one."""
    if out.exists() and not out.is_dir():
        raise BadRequest(f'{out} is a file; pass a directory as out="DIR"')
    names = [path.name for path in out.iterdir()] if out.is_dir() else []
    if PLAN not in names and not all(KIND.is_temporary(name) for name in names):
        raise BadRequest(f'{out} is not empty and not a comparison; pass another out="DIR"')
    if PLAN in names and force:
        check_replaceable(out, force, KIND)


@contextmanager
def prepared_directory(
    out: Path, plan: dict[str, Any], force: bool = False, distribution: Distribution | None = None
) -> Iterator[dict[str, Any]]:
    """Create and lock `out`, or check that it holds this comparison. Yields the plan with the first call's threads."""
    ranks = distribution or Distribution()
    with ExitStack() as stack:

        def prepare() -> None:
            check_directory(out, force)
            stack.callback(occupy(out, KIND, force).release)
            write_text(out / PLAN, json.dumps(_agreed(out, plan), indent=2) + "\n")

        ranks.on_main(prepare)
        yield json.loads((out / PLAN).read_text())


def _agreed(out: Path, plan: dict[str, Any]) -> dict[str, Any]:
    stored = out / PLAN
    if not stored.is_file():
        return plan
    try:
        before = json.loads(stored.read_text("utf-8"))
        kept = {"threads": before["threads"], "steps": before.get("steps")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadRequest(f'{stored} is damaged; start over with force=True, or pass another out="DIR"') from None
    for key in plan:
        old, new = before.get(key), plan[key]
        if key in ("threads", "command", "steps") or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):  # the settings: name the one that differs
            key, old, new = next((k, old.get(k), new[k]) for k in new if old.get(k) != new[k])
        raise BadRequest(
            f'{out} holds a comparison with {key} {old}, not {new}; pass another out="DIR", or replace it with '
            "force=True"
        )
    return {**plan, **kept}


def plan_runs(
    base: Settings, variants: Sequence[Variant], corpora: Sequence[Corpus], widths: Sequence[int],
    seeds: Sequence[int], out: Path, *, match: str, anchor: str, threads: int,
    rates: Mapping[tuple[str, int, int], LearningRates] | None = None,
) -> list[list[Run]]:  # fmt: skip
    """The runs of the ladder, in groups that take turns: seed by seed, smallest model first.

    `rates` are learning rates by variant, width and vocabulary; without them a run has those of its settings.
    """
    groups = []
    for seed in seeds:
        for corpus in corpora:
            for width, shape in zip(sorted(set(widths)), check_widths(base, widths), strict=True):
                configs = variant_configs(shape, list(variants), corpus.vocab, match, anchor)
                runs = [_run(config, width, seed, corpus, out, threads) for config in configs]
                groups.append([_with_rates(run, rates or {}) for run in runs])
    return groups


def _run(config: VariantConfig, width: int, seed: int, corpus: Corpus, out: Path, threads: int) -> Run:
    config = replace(config, settings=replace(config.settings, seed=seed, threads=threads))
    return Run(config, width, seed, out / f"{config.variant.name}-d{width}-v{corpus.vocab}-s{seed}", corpus)


def _with_rates(run: Run, rates: Mapping[tuple[str, int, int], LearningRates]) -> Run:
    key = (run.variant, run.width, run.vocab)
    if key not in rates:
        return run
    return replace(run, config=replace(run.config, settings=replace(run.settings, rates=rates[key])))


def train_in_turns(
    runs: Sequence[Run], *, report: OnRecord | None = None, interrupted: Callable[[], bool] = lambda: False,
    distribution: Distribution | None = None, watch: ThreadWatch | None = None,
) -> None:  # fmt: skip
    """Train the runs that are not finished. The next turn is always that of the run which is furthest behind.

    `watch` corrects the number of CPU threads between turns, for all runs at once.
    """
    import torch

    ranks = distribution or Distribution()
    resumed = {run.name: holds_this_run(run) for run in runs}
    waiting = [run for run in runs if not (resumed[run.name] and RunDirectory(run.path).is_finished())]
    ranks.barrier()  # before rank 0 writes into a directory that another rank has not looked at yet
    with ExitStack() as stack:
        opened = [stack.enter_context(_open(run, resumed[run.name], report, ranks)) for run in waiting]
        if watch is not None:
            torch.set_num_threads(watch.threads)  # a run that is opened sets the number of its settings
        while active := [one for one in opened if not one.done]:
            if watch is not None and watch.poll():
                torch.set_num_threads(watch.threads)
            behind = min(active, key=lambda one: one.progress)
            if behind.advance(SLICE_STEPS, interrupted):
                for one in opened:
                    one.save()
                raise Interrupted(f"{behind.run.path} stopped after {behind.step:,} steps")
        for one in opened:
            one.finish()


def _open(run: Run, resume: bool, report: OnRecord | None, ranks: Distribution) -> AbstractContextManager[Training]:
    return training(
        run.settings, run.corpus, run.path, model=initial_model(run.settings, run.vocab), resume=resume,
        report=lambda record: report(run, record) if report else None, distribution=ranks, by_document=True,
    )  # fmt: skip


def initial_model(settings: Settings, vocab: int) -> GPT:
    """The model before training. All variants of a width and a seed have the same weights outside the vocabulary.

    A variant with another vocabulary matrix would draw other random numbers for the layers after it.
    """
    import torch

    from tiebeam.nn import GPT

    plain = replace(settings, tie=True, embed_dim=None, bridge=False, zero_head=False, pseudo_inverse=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(settings.seed)
        model = GPT(settings.model(vocab))
        torch.manual_seed(settings.seed)
        common = GPT(plain.model(vocab))
        weights, table = dict(model.named_parameters()), common.table.weight
        for name, value in common.named_parameters():
            if value is not table and name in weights and weights[name].shape == value.shape:
                weights[name].copy_(value)
    return model


def holds_this_run(run: Run) -> bool:
    """Whether the directory holds this run, finished or not; False if there is none yet."""
    if not (run.path / RUN).is_file():
        RunDirectory.check(run.path)
        return False
    stored = RunDirectory.open(run.path).read_run()
    ours = json.loads(json.dumps(run.settings.to_dict()))
    theirs = json.loads(json.dumps(Settings.from_dict(stored["settings"]).to_dict()))
    for key in ours:
        if key != "threads" and ours[key] != theirs[key]:
            raise BadRequest(
                f'{run.path} was trained with {key} {theirs[key]}, not {ours[key]}; pass another out="DIR", or '
                "replace it with force=True"
            )
    if stored["corpus"].get("digest") != run.corpus.to_dict()["digest"]:
        raise BadRequest(
            f'{run.path} was trained on another text; pass another out="DIR", or replace it with force=True'
        )
    return True


def final_metrics(path: Path) -> dict[str, Any]:
    """Final validation record of a finished run."""
    found = RunDirectory.open(path).final_validation()
    assert found, f"{path} is not finished"
    return found
