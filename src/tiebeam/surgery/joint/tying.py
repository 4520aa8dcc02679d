"""The whole of `tie --joint`: calibrate on a text, fit, plan, and try the written model on the text held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest, ProofFailed, UnreadableInput
from tiebeam.surgery.carrying_out import Plan, Watch, unwatched
from tiebeam.surgery.cases import Case
from tiebeam.surgery.joint.calibration import Calibration, calibrate
from tiebeam.surgery.joint.fitting import Fit, Recipe, fit
from tiebeam.surgery.joint.planning import pair_rows, plan_expand, plan_joint

if TYPE_CHECKING:
    from tiebeam.decode import Decoder

_SLACK = 0.02  # nats that rounding the table to its stored type may cost beyond what was fitted


@dataclass(frozen=True)
class Joining:
    """A pair, what was learned from the text, and the fit; `plan(expand)` writes it."""

    case: Case
    decoder: Decoder
    calibration: Calibration
    fitted: Fit

    def plan(self, expand: bool = False) -> Plan:
        plan = (plan_expand if expand else plan_joint)(self.case, self.fitted)
        return replace(plan, trial=self._try)

    def _try(self, result: Checkpoint) -> Mapping[str, Any]:
        """The written model, opened anew, on the text that nothing was fitted to."""
        from tiebeam.decode import Decoder, divergence

        after = Decoder.open(result)
        totals = {"kl": 0.0, "agreement": 0.0, "before": 0.0, "after": 0.0}
        tokens = 0
        for run in self.calibration.held_out:
            d = divergence(self.decoder, after, run)
            n = d.before.tokens
            tokens += n
            found = {
                "kl": d.kl,
                "agreement": d.agreement,
                "before": d.before.nats_per_token,
                "after": d.after.nats_per_token,
            }
            for key, value in found.items():
                totals[key] += n * value
        measured = {key: value / tokens for key, value in totals.items()}
        if measured["after"] > self.fitted.after + _SLACK:
            raise ProofFailed(
                f"the written model loses {measured['after']:.3f} nats per token where {self.fitted.after:.3f} were "
                "fitted; nothing was put in place"
            )
        return {**measured, "tokens": tokens, "spectrum": self.spectrum()}

    def spectrum(self) -> list[dict[str, Any]]:
        _, V, D = pair_rows(self.case)
        return self.fitted.lines(V, D)


def join(
    case: Case, text: str, recipe: Recipe | None = None, watch: Watch = unwatched, rank: int | None = None
) -> Joining:
    """Calibrate and fit. Without a recipe, the default one at `rank` (None: the width of the model)."""
    from tiebeam.decode import Decoder

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
        decoder = Decoder.open(case.checkpoint, embed=pair.embed.name, head=pair.head.name)
    except UnreadableInput as error:
        raise UnreadableInput(f"--joint has to run the model, to see what its head sees: {error}") from None
    calibration = calibrate(decoder, text, progress=_stage(watch, "calibrating"))
    return Joining(case, decoder, calibration, fit(decoder, rows, calibration, recipe, _stage(watch, "fitting")))


def _stage(watch: Watch, name: str) -> Callable[[int, int], None]:
    return lambda done, total: watch(name, done, total)
