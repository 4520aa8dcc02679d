"""The words of an answer: winners, intervals, what is needed, and the three sentences."""

import numpy as np
import pytest

from helpers.comparison_answers import STEPS, TITLES, answer, found
from tiebeam.compare.document import Gap
from tiebeam.compare.held_out_losses import loss_by_frequency, mean_and_standard_error
from tiebeam.compare.verdict import answer_sentence, make_verdict, running_text, what_is_needed


def test_a_clear_difference_names_the_better_variant_with_positive_numbers():
    assert answer().sentence == (
        "At equal steps (300), width 256: untied is better than tied by 0.0400 bits per byte (95% CI 0.0300 to "
        "0.0500), 1.9100 vs 1.9500."
    )
    assert "tied is better than untied by 0.0400 bits per byte (95% CI 0.0300 to 0.0500)" in answer(0.04).sentence


def test_an_interval_that_includes_0_has_no_winner_and_says_what_would_settle_it():
    unclear = answer(-0.004, 0.016)
    assert unclear.winner is None
    assert "no clear difference, untied minus tied is -0.0040" in unclear.sentence
    assert "(95% CI -0.0200 to +0.0120, includes 0)" in unclear.sentence
    assert unclear.needed
    assert answer().needed == ""


def test_needed_seeds_come_with_their_training_time():
    text = what_is_needed(found(0.012, 0.02, documents=0.002, seeds=0.01), 1, 5.0)
    seeds = int(text.split("about ")[1].split()[0])
    assert 3 <= seeds <= 20
    assert f"({5 * seeds} min of training)" in text
    assert "held-out text" in what_is_needed(found(0.003, 0.02, documents=0.01, seeds=0.0001), 1, 5.0)
    assert "More than 100 seeds" in what_is_needed(found(0.0001, 0.02, documents=0.0001, seeds=0.01), 1, 5.0)


def test_equal_time_names_the_steps_of_both():
    at = {**STEPS, "steps": [300, 286], "seconds": [60.0, 60.0]}
    text = answer_sentence("time", TITLES, found(-0.03, 0.01), (1.95, 1.92), at)
    assert text.startswith("At equal time (60 s of training: tied 300 and untied 286 steps), width 256: untied")


def test_the_verdict_has_three_sentences_with_the_other_widths_and_the_packed_size():
    answers = {q: answer(question=q) for q in ("steps", "time", "size", "packed")}
    gaps = [Gap("untied", w, 2048, 0.2, answer(d, 0.01, width=w), answer(d, 0.01, width=w))
            for w, d in ((64, 0.005), (128, -0.06), (256, -0.04))]  # fmt: skip
    verdict = make_verdict(answers, gaps)
    assert len(verdict.sentences) == 3
    assert "Width 64: no clear difference; width 128: untied by 0.0600." in verdict.sentences[0]
    assert verdict.sentences[2].startswith("At equal size (400.0k to 2.9M parameters): untied is better")
    assert verdict.sentences[2].endswith("At equal packed size (int8, embeddings fp16): untied by 0.0400.")
    assert (verdict.winner, verdict.difference, verdict.seeds) == ("untied", -0.04, 1)
    assert verdict.half_width == pytest.approx(0.01)
    assert "one seed" in verdict.note
    alone = make_verdict({q: answers[q] for q in ("steps", "time")}, gaps[2:])
    assert alone.sentences[2].startswith("Equal size cannot be answered from one width")


@pytest.mark.parametrize(
    ("halfway", "said"),
    [
        (-0.06, "The difference is shrinking, from -0.0600 at step 150 to -0.0400 at step 300: longer training may"),
        (0.06, "The difference has changed its sign, from +0.0600 at step 150 to -0.0400 at step 300"),
        (-0.043, ""),
        (-0.02, ""),
    ],
)
def test_a_difference_that_shrinks_during_the_run_is_said_with_the_verdict(halfway, said):
    at = {**STEPS, "halfway": {"step": 150.0, "difference": halfway}}
    note = make_verdict({"steps": answer(at=at), "time": answer(question="time")}, []).note
    assert said in note
    assert ("longer training may change the answer" in note) == bool(said)
    unclear = make_verdict({"steps": answer(0.001, at=at), "time": answer(question="time")}, []).note
    assert "longer training" not in unclear


def test_the_running_answer_is_one_short_line():
    assert running_text(TITLES, found(-0.06, 0.02), 64, 150) == (
        "width 64, step 150: untied better than tied by 0.0600 (95% CI 0.0400 to 0.0800)"
    )
    assert "includes 0" in running_text(TITLES, found(-0.01, 0.02), 64, 150)


def test_frequency_bands_have_equal_text_and_cover_every_token():
    counts = np.array([500, 300, 100, 50, 25, 15, 10, 0])
    targets = np.repeat(np.arange(8), [50, 30, 10, 5, 2, 1, 1, 1])
    found = loss_by_frequency(targets.astype(np.float32), targets, counts, number=2)
    assert [b.tokens for b in found] == [1, 7]
    assert found[0].nats == 0
    assert found[1].nats == pytest.approx(targets[targets > 0].mean())


def test_standard_error_over_seeds():
    assert mean_and_standard_error([2.0]) == (2.0, None)
    mean, error = mean_and_standard_error([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / 3**0.5))
