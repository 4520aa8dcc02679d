"""`tie --joint` from start to end: calibrate on text, fit, optionally distil, plan, and measure the written model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam._memory import trim_memory
from tiebeam.checkpoint import Checkpoint, dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.decode.numpy.ops import log_softmax
from tiebeam.errors import BadRequest, ProofFailed, UnreadableInput
from tiebeam.surgery.execute import Target, execute
from tiebeam.surgery.joint.calibration import TOKENS, Calibration, calibrate
from tiebeam.surgery.joint.fit import Fit, Recipe, fit, tables_of
from tiebeam.surgery.joint.held_out import HeldOut, Measured
from tiebeam.surgery.joint.joint_plan import pair_rows, plan_expand, plan_joint, stored_tables
from tiebeam.surgery.plan import Outcome, Plan, Progress, no_progress
from tiebeam.surgery.source import Source

if TYPE_CHECKING:
    from tiebeam.decode import Engine
    from tiebeam.surgery.joint.distill import Distilled

_SLACK = 0.02  # what rounding the table to its stored dtype may change: nats of KL, and share of the embeddings
_LARGE = 10**8  # parameters
_CHECKED = 128  # positions and rows on which the written tables are compared with the fitted ones


@dataclass(frozen=True)
class JointFit:
    """A fitted table and its maps, with the text statistics that they were fitted to."""

    source: Source
    held_out: HeldOut
    calibration: Calibration
    fitted: Fit
    device: str | None = None
    progress: Progress | None = None
    state: Path | None = None
    """Where the state of the distillation is, if there was one."""

    def distilled(
        self, minutes: float, target: Path | None = None, progress: Progress | None = None
    ) -> tuple[JointFit, Distilled]:
        """Distil from the original model for `minutes`. The state is kept beside `target` so that it can resume."""
        from tiebeam.surgery.joint.distill import distill

        rows, _, _ = pair_rows(self.source)
        keep_at = None if target is None else distill_directory(target)
        done = distill(
            self.held_out, rows, self.calibration, self.fitted, minutes, keep_at, _stage(progress, "distilling")
        )
        return replace(self, fitted=done.fitted, state=keep_at), done

    def plan(self, expand: bool = False) -> Plan:
        """Plan to write the table and its maps; with `expand`, two ordinary matrices."""
        plan = (plan_expand if expand else plan_joint)(self.source, self.fitted)
        return replace(plan, measure=self._measure)

    def write(
        self,
        target: str | os.PathLike[str] | Target,
        *,
        expand: bool = False,
        force: bool = False,
        link: bool = False,
        proof: bool = True,
        durable: bool = True,
        progress: Progress | None = None,
        engine: str = "auto",
        device: str | None = None,
    ) -> Outcome:
        """Execute `plan(expand)` and remove the state of its own distillation. The arguments are those of `execute`."""
        from tiebeam.surgery.joint.distill import remove_state

        outcome = execute(
            self.plan(expand), target, force=force, link=link, proof=proof, durable=durable, progress=progress,
            engine=engine, device=device,
        )  # fmt: skip
        if self.state is not None:
            remove_state(self.state)
        return outcome

    def spectrum(self, after: Measured | None = None) -> list[dict[str, Any]]:
        """Per rank: KL, agreement, loss, energy kept, parameters saved. `after` is what the written model gave."""
        _, V, D = pair_rows(self.source)
        after = after or self.fitted.after
        assert after is not None
        return self.fitted.lines(V, D, after)

    def _measure(self, result: Checkpoint) -> Mapping[str, Any]:
        """Run the layers with the written tables on the held-out text. The layers are those of the source, which were
        compared when they were copied, so they are not loaded a second time."""
        rows, V, _ = pair_rows(self.source)
        original, states = self.held_out.original, self.held_out.states[0][:_CHECKED]
        ids = np.arange(0, V, max(1, V // _CHECKED))
        planned = original.with_tables(*tables_of(rows, V, self.fitted.factors, original.embed))
        p, e = log_softmax(planned.unembed(states)), planned.embed.lookup(ids)
        del planned  # one table in memory at a time
        trim_memory()
        written = original.with_tables(*stored_tables(result))
        q, f = log_softmax(written.unembed(states)), written.embed.lookup(ids)
        apart, wrong = float((np.exp(p) * (p - q)).sum(1).mean()), float(np.linalg.norm(e - f) / np.linalg.norm(e))
        del p, q, e, f
        if not (apart < _SLACK and wrong < _SLACK):
            raise ProofFailed(
                f"the written tables differ from the fitted ones: a KL of {apart:.4f} nats per token, embeddings off "
                f"by {wrong:.1%}; nothing was written"
            )
        before = self.held_out.before
        after = self.held_out.measure(written, _stage(self.progress, "running the written model"))
        return {"before": before.to_dict(), "after": after.to_dict(), "spectrum": self.spectrum(after)}


def distill_directory(target: Path) -> Path:
    """Where the state of an unfinished distillation is kept."""
    return target.with_name(f"{target.name}.distill")


def fit_joint(
    source: Source,
    text: str | Sequence[str] | None,
    recipe: Recipe | None = None,
    *,
    rank: int | None = None,
    exact_rows: int | None = None,
    tokens: int = TOKENS,
    confirm: bool = True,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> JointFit:
    """Calibrate on `text` (one text, or one per file) and fit.

    Without `recipe`, the default one with `rank` (None: the model's width) and `exact_rows` (None: 30% of them).
    `tokens` are run to calibrate. `confirm`: run the fitted model; without it, only the written model is run.
    """
    rows, V, D = pair_rows(source)
    recipe = recipe or Recipe(rank or D, exact_rows=exact_rows)
    if not 1 <= recipe.rank <= 2 * D:
        raise BadRequest(f"rank={recipe.rank} must be between 1 and {2 * D:,}, twice the width (which is exact)")
    if recipe.exact_rows is not None and recipe.exact_rows > V:
        raise BadRequest(f"exact_rows={recipe.exact_rows} exceeds the vocabulary of {V:,}")
    if text is None:
        raise BadRequest(
            'joint=True needs text="FILE": the fit weights rows and directions by text like that which the model will '
            "read; unweighted, the same table costs several nats per token instead of a few hundredths"
        )
    original = open_original(source, engine, device, _stage(progress, "opening the model"))
    calibration = calibrate(original, text, tokens, progress=_stage(progress, "calibrating"))
    held_out = HeldOut(original, calibration.held_out, calibration.held_out_hidden)
    trim_memory()
    fitted = fit(held_out, rows, calibration, recipe, progress or no_progress, confirm)
    trim_memory()
    return JointFit(source, held_out, calibration, fitted, device, progress)


def open_original(source: Source, engine: str, device: str | None, progress: Callable[[int, int], None]) -> Engine:
    """The engine that runs the source. A GGUF is dequantised for transformers.

    "auto" takes transformers for a large model, where it is installed and runs it: thousands of tokens go through
    every layer, and `device` may name a GPU."""
    from tiebeam.decode import Table, open_engine
    from tiebeam.decode.numpy.load_weights import Weights
    from tiebeam.decode.transformers import Converted, TransformersEngine

    pair = source.report.pair
    assert pair.embed
    assert pair.head
    options: dict[str, Any] = {"embed": pair.embed.name, "head": pair.head.name, "progress": progress}
    if source.converted and source.checkpoint.format == "gguf":
        options["converted"] = Converted(source.layout.config or {}, lambda: _tensors(source, progress))
    if engine == "auto" and source.report.params.stored >= _LARGE:
        progress(0, 1)
        rows = Weights(source.checkpoint).rows_on_demand(pair.embed.name, (pair.embed.rows, pair.embed.dim))
        with suppress(UnreadableInput):  # not installed, or it does not run this model
            return TransformersEngine.open(
                source.checkpoint, device=device or "cpu", embed=pair.embed.name, head=pair.head.name,
                converted=options.get("converted"), lookup=Table(rows),
            )  # fmt: skip
    try:
        return open_engine(source.checkpoint, engine=engine, device=device, **options)
    except UnreadableInput as error:
        raise UnreadableInput(f"joint=True must run the model to calibrate, which is not possible: {error}") from None


def _tensors(source: Source, progress: Callable[[int, int], None]) -> Iterator[tuple[str, Any]]:
    """The tensors of a GGUF as they will be written, for an engine that does not read GGUF."""
    entries = [entry for shard in source.layout.shards for entry in shard.entries]
    for done, entry in enumerate(entries):
        progress(done, len(entries))
        assert isinstance(entry.content, Made)
        yield entry.name, dtypes.decode(entry.dtype, b"".join(entry.content.blocks()), entry.shape)
    progress(len(entries), len(entries))


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None]:
    show = progress or no_progress
    return lambda done, total: show(name, done, total)
