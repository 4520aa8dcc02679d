"""The method on a known effect: where the vocabulary matrix is most of the model, tying wins at equal size.

A model of one small layer under a vocabulary of 8,192 is nearly all embedding. Untied it has almost twice the
parameters, which a tied model of the same size puts into width. At equal steps and width the second matrix only adds
freedom, so untied must not lose. The effect needs a large vocabulary and some training: with a vocabulary of 2,000 and
120 steps untied was ahead at equal size, too.
"""

import pytest

from tiebeam.compare import VARIANTS
from tiebeam.compare.comparison import base_settings
from tiebeam.compare.gaps_to_baseline import make_ladder, pair_answers
from tiebeam.compare.held_out_curves import read_curve, windows_of
from tiebeam.compare.ladder_cells import collect_cell
from tiebeam.compare.train_runs import plan_runs, train_in_turns
from tiebeam.corpus import build_corpus


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_tied_wins_at_equal_size_and_untied_does_not_lose_at_equal_steps(tmp_path):
    corpus = build_corpus([], tmp_path / "c", vocab=8192, max_bytes=4_000_000)
    base = base_settings(layers=1, dim=32, heads=2, kv_heads=1, mlp_dim=32, context=64, batch_tokens=1024, steps=300,
                         threads=1, validation_tokens=32768, validate_every=0.5)  # fmt: skip
    chosen = [VARIANTS["tied"], VARIANTS["untied"]]
    groups = plan_runs(base, chosen, [corpus], [16, 32], [0, 1, 2], tmp_path, match="steps", anchor="tied", threads=1)
    for runs in groups:
        train_in_turns(runs)
    windows = windows_of(groups[0][0])
    curves = [read_curve(run, windows) for runs in groups for run in runs]
    cells = [collect_cell(curve) for curve in curves]
    answers = pair_answers(curves, cells, "steps")["untied"]
    assert answers["size"].winner == "tied", answers["size"].sentence
    assert all(gap.steps.winner != "tied" for gap in make_ladder(curves, cells).gaps)
