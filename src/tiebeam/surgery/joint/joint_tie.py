"""`tie --joint` from start to end: calibrate on text, fit, optionally distil, plan, and measure the written model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest, ProofFailed, UnreadableInput
from tiebeam.surgery.execute import Target, execute
from tiebeam.surgery.joint.calibration import Calibration, calibrate
from tiebeam.surgery.joint.fit import Fit, Recipe, fit
from tiebeam.surgery.joint.held_out import HeldOut
from tiebeam.surgery.joint.joint_plan import pair_rows, plan_expand, plan_joint
from tiebeam.surgery.plan import Outcome, Plan, Progress, no_progress
from tiebeam.surgery.source import Source

if TYPE_CHECKING:
    from tiebeam.surgery.joint.distill import Distilled

_SLACK = 0.02  # nats of KL that rounding the table to its stored dtype may add to the fitted KL


@dataclass(frozen=True)
class JointFit:
    """A fitted table and its maps, with the text statistics that they were fitted to."""

    source: Source
    held_out: HeldOut
    calibration: Calibration
    fitted: Fit
    device: str | None = None
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
        from tiebeam.decode import engine_name

        if not expand and engine_name(self.held_out.original) != "numpy":
            raise BadRequest(
                f"only transformers runs {self.source.checkpoint.architecture} models, and it does not read the joint "
                "form; write two ordinary matrices with expand=True"
            )
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

    def spectrum(self) -> list[dict[str, Any]]:
        """Per rank: energy kept, parameters saved, loss."""
        _, V, D = pair_rows(self.source)
        return self.fitted.lines(V, D)

    def _measure(self, result: Checkpoint) -> Mapping[str, Any]:
        """Run the written model on the held-out text."""
        from tiebeam.decode import engine_name, open_engine

        engine = open_engine(result, engine=engine_name(self.held_out.original), device=self.device)
        before, after = self.held_out.before, self.held_out.measure(engine)
        if after.kl > self.fitted.after.kl + _SLACK:
            raise ProofFailed(
                f"the written model has a KL of {after.kl:.4f} nats per token from the original, but the fit had "
                f"{self.fitted.after.kl:.4f}; nothing was written"
            )
        return {"before": before.to_dict(), "after": after.to_dict(), "spectrum": self.spectrum()}


def distill_directory(target: Path) -> Path:
    """Where the state of an unfinished distillation is kept."""
    return target.with_name(f"{target.name}.distill")


def fit_joint(
    source: Source,
    text: str | None,
    recipe: Recipe | None = None,
    *,
    rank: int | None = None,
    exact_rows: int = 0,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> JointFit:
    """Calibrate on `text` and fit. Without `recipe`, the default one with `rank` (None: the model's width)."""
    from tiebeam.decode import open_engine

    rows, V, D = pair_rows(source)
    recipe = recipe or Recipe(rank or D, exact_rows=exact_rows)
    if not 1 <= recipe.rank <= 2 * D:
        raise BadRequest(f"rank={recipe.rank} must be between 1 and {2 * D:,}, twice the width (which is exact)")
    if recipe.exact_rows > V:
        raise BadRequest(f"exact_rows={recipe.exact_rows} exceeds the vocabulary of {V:,}")
    if text is None:
        raise BadRequest(
            'joint=True needs text="FILE": the fit weights rows and directions by text like that which the model will '
            "read; unweighted, the same table costs several nats per token instead of a few hundredths"
        )
    pair = source.report.pair
    assert pair.embed
    assert pair.head
    try:
        original = open_engine(
            source.checkpoint, embed=pair.embed.name, head=pair.head.name, engine=engine, device=device
        )
    except UnreadableInput as error:
        raise UnreadableInput(f"joint=True must run the model to calibrate, which is not possible: {error}") from None
    calibration = calibrate(original, text, progress=_stage(progress, "calibrating"))
    held_out = HeldOut(original, calibration.held_out)
    fitted = fit(held_out, rows, calibration, recipe, _stage(progress, "fitting"))
    return JointFit(source, held_out, calibration, fitted, device)


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None]:
    show = progress or no_progress
    return lambda done, total: show(name, done, total)
