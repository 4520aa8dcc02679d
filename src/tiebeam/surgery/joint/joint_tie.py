"""The whole of `tie --joint`: calibrate on a text, fit, plan, and try the written model on the text held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest, ProofFailed, UnreadableInput
from tiebeam.surgery.cases import Case
from tiebeam.surgery.execute import Plan, Watch, unwatched
from tiebeam.surgery.joint.calibration import Calibration, calibrate
from tiebeam.surgery.joint.fit import Fit, Recipe, fit
from tiebeam.surgery.joint.held_out import HeldOut
from tiebeam.surgery.joint.joint_plan import pair_rows, plan_expand, plan_joint

if TYPE_CHECKING:
    from tiebeam.surgery.joint.distill import Healed

_SLACK = 0.02  # nats that rounding the table to its stored type may cost beyond what was fitted


@dataclass(frozen=True)
class Joining:
    """A pair, what was learned from the text, and the fit; `plan(expand)` writes it."""

    case: Case
    held_out: HeldOut
    calibration: Calibration
    fitted: Fit

    def healed(self, minutes: float, target: Path | None = None, watch: Watch = unwatched) -> tuple[Joining, Healed]:
        """Trained on for `minutes`; what was done is kept beside `target` until the target is written."""
        from tiebeam.surgery.joint.distill import heal

        rows, _, _ = pair_rows(self.case)
        keep_at = None if target is None else healing_place(target)
        done = heal(self.held_out, rows, self.calibration, self.fitted, minutes, keep_at, _stage(watch, "healing"))
        return replace(self, fitted=done.fitted), done

    def plan(self, expand: bool = False) -> Plan:
        from tiebeam.decode import engine_name

        if not expand and engine_name(self.held_out.original) != "numpy":
            raise BadRequest(
                f"{self.case.checkpoint.architecture} models run with transformers only, which does not read the joint "
                "form; write two ordinary matrices instead: expand=True"
            )
        plan = (plan_expand if expand else plan_joint)(self.case, self.fitted)
        return replace(plan, trial=self._try)

    def _try(self, result: Checkpoint) -> Mapping[str, Any]:
        """The written model, opened anew, on the text that nothing was fitted to."""
        from tiebeam.decode import open_engine

        before, after = self.held_out.before, self.held_out.measure(open_engine(result))
        if after.kl > self.fitted.after.kl + _SLACK:
            raise ProofFailed(
                f"the written model is {after.kl:.4f} nats per token from the original, {self.fitted.after.kl:.4f} "
                "were fitted; nothing was put in place"
            )
        return {"before": before.to_dict(), "after": after.to_dict(), "spectrum": self.spectrum()}

    def spectrum(self) -> list[dict[str, Any]]:
        _, V, D = pair_rows(self.case)
        return self.fitted.lines(V, D)


def healing_place(target: Path) -> Path:
    return target.with_name(f"{target.name}.healing")


def join(
    case: Case, text: str, recipe: Recipe | None = None, watch: Watch = unwatched, rank: int | None = None
) -> Joining:
    """Calibrate and fit. Without a recipe, the default one at `rank` (None: the width of the model)."""
    from tiebeam.decode import open_engine

    rows, V, D = pair_rows(case)
    recipe = recipe or Recipe(rank or D)
    if not 1 <= recipe.rank <= 2 * D:
        raise BadRequest(
            f"--rank {recipe.rank} does not lie between 1 and {2 * D:,}, twice the width, where nothing is lost"
        )
    if recipe.exact_rows > V:
        raise BadRequest(f"--exact-rows {recipe.exact_rows:,} is more than the vocabulary of {V:,}")
    pair = case.report.pair
    assert pair.embed
    assert pair.head
    try:
        decoder = open_engine(case.checkpoint, embed=pair.embed.name, head=pair.head.name)
    except UnreadableInput as error:
        raise UnreadableInput(f"--joint has to run the model, to see what its head sees: {error}") from None
    calibration = calibrate(decoder, text, progress=_stage(watch, "calibrating"))
    held_out = HeldOut(decoder, calibration.held_out)
    return Joining(case, held_out, calibration, fit(held_out, rows, calibration, recipe, _stage(watch, "fitting")))


def _stage(watch: Watch, name: str) -> Callable[[int, int], None]:
    return lambda done, total: watch(name, done, total)
