"""lesson/real_tokens.json: everything in it is what its command writes."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from helpers.studio_files import tiny_llama
from tiebeam.studio import real_tokens
from tiebeam.studio.pages import STATIC

KEPT = json.loads((STATIC / "lesson" / "real_tokens.json").read_text())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What the command writes for tiny models and a training of two steps."""
    where = tmp_path_factory.mktemp("slices")
    plays = where / "shakespeare"
    plays.mkdir()
    for i in range(40):
        lines = [f"good sir {i} thou art my lord of York and King Henry hath been {k} ." for k in range(400)]
        (plays / f"{i}.txt").write_text("\n".join(lines))
    tied, untied = tiny_llama(where / "tied"), tiny_llama(where / "untied", tied=False)
    words = [str(where / "out.json"), "--smollm2", str(tied), "--tinyllama", str(untied), "--plays", str(plays)]
    real_tokens.main([*words, "--steps", "2"])
    return json.loads((where / "out.json").read_text())


def test_the_file_has_the_titles_and_the_structure_that_the_command_writes(written):
    assert list(KEPT) == list(written)
    for kept, made in zip(KEPT["slices"], written["slices"], strict=True):
        assert list(kept) == list(made)
        assert kept["title"] == made["title"]
        assert kept["tied"] == made["tied"]
        n = len(kept["tokens"])
        assert 20 <= n <= real_tokens.MOST
        assert np.shape(kept["raw"]) == np.shape(kept["normed"]) == (n, n)


def test_the_file_names_its_command_and_those_that_trained_its_models(written):
    two_steps = shlex.split(written["command"])
    assert shlex.split(KEPT["command"])[:4] == [*two_steps[:3], "real_tokens.json"]
    assert two_steps[-2:] == ["--steps", "2"]
    assert [word for word in shlex.split(KEPT["command"]) if word.startswith("--")] == [
        word for word in two_steps[:-2] if word.startswith("--")
    ]
    for kept, tie, out in zip(KEPT["slices"][2:], ("yes", "no"), ("tied", "untied"), strict=True):
        command = ["tiebeam", *real_tokens.train_words("shakespeare", tie, real_tokens.STEPS, out)]
        assert shlex.split(kept["origin"]) == command


def test_words_are_those_of_the_code_in_its_order():
    for kept, words in zip(KEPT["slices"], 2 * [real_tokens.WORDS] + 2 * [real_tokens.WORDS_OF_THE_PLAYS], strict=True):
        assert kept["tokens"] == [word for word in words.split() if word in kept["tokens"]][: real_tokens.MOST]


def test_tied_slices_are_symmetric_without_the_norm_and_untied_ones_are_not():
    for kept in KEPT["slices"]:
        raw = np.asarray(kept["raw"])
        assert bool((raw == raw.T).all()) is kept["tied"]


@pytest.mark.real
def test_the_slice_of_smollm2_is_the_direct_path_of_the_published_model(smollm2):
    made = real_tokens.real_slice("SmolLM2 135M", smollm2, smollm2.name)
    assert made == KEPT["slices"][0]


@pytest.mark.real
def test_the_slice_of_tinyllama_is_the_direct_path_of_the_published_model():
    from helpers.registry import tinyllama

    model = tinyllama()
    assert real_tokens.real_slice("TinyLlama 1.1B", model, model.name) == KEPT["slices"][1]


def test_the_pairs_that_the_text_speaks_of_are_in_the_slices_and_say_what_it_says():
    def both(kept, one, two):
        i, j = kept["tokens"].index(one), kept["tokens"].index(two)
        return kept["raw"][i][j], kept["raw"][j][i]

    for kept, pair in zip(KEPT["slices"], 2 * [("New", "York")] + 2 * [("my", "lord")], strict=True):
        there, back = both(kept, *pair)
        assert (there == back) is kept["tied"]
    there, back = both(KEPT["slices"][3], "my", "lord")
    assert there > 5 * abs(back)
