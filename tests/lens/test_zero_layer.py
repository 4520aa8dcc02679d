"""The study of a corpus: what is held out from what, and that its words follow its numbers."""

from dataclasses import replace

import numpy as np
import pytest

from tiebeam.corpus import build_corpus
from tiebeam.errors import BadRequest
from tiebeam.lens.bigrams import Fit
from tiebeam.lens.rank_bounds import Bounds
from tiebeam.lens.zero_layer import ZeroLayer, counted, held_back, study


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    where = tmp_path_factory.mktemp("corpus")
    return build_corpus([], where / "c", vocab=300, max_bytes=200_000)


def test_study_of_real_text_orders_the_forms(corpus):
    found = study(corpus, dim=8, steps=80)
    bits = {form: row.bits for form, row in found.fits.items()}
    assert bits["EE"] > bits["EME"] > found.smoothed.bits
    assert bits["EE"] > bits["EW"]
    assert found.unigram.bits > bits["EW"]
    assert found.to_dict()["forms"]["EE"]["params"] == corpus.vocab * 8


def test_no_pair_is_both_learned_from_and_stopped_by(corpus):
    train, dev, test = counted(corpus)
    everything = corpus.train[:]
    inner = int(((everything[:-1] != corpus.boundary) & (everything[1:] != corpus.boundary)).sum())
    assert train.total + dev.total <= inner
    assert train.total + dev.total >= inner - 1  # a cut inside one document loses the pair across it
    assert test.total > 0


def test_whole_documents_are_held_back():
    tokens = np.tile([0, 1, 2, 3], 100)  # 100 documents of three tokens
    held = held_back(tokens, 0).reshape(100, 4)
    assert (held.all(axis=1) == held.any(axis=1)).all()
    assert held.any(axis=1).sum() == 5


def test_the_end_of_a_single_document_is_held_back():
    held = held_back(np.arange(1, 101), 0)
    assert held.sum() == 5
    assert held[-5:].all()


@pytest.mark.parametrize(
    ("options", "word"), [({"forms": ["EX"]}, "EX"), ({"dim": 0}, "width 0"), ({"dim": 10_000}, "wider"),
                          ({"top": 0}, "--top")]
)  # fmt: skip
def test_wrong_requests_are_refused(corpus, options, word):
    with pytest.raises(BadRequest, match=word):
        study(corpus, steps=1, **{"dim": 4, **options})


def made(bits, **shares):
    fits = {form: Fit(form, value, 100) for form, value in bits.items()}
    plain = Fit("", 9.0, 10)
    given = {"dim": 4, "antisymmetric": 0.2, "negative": 0.7, "any": 0.1, "symmetric": 0.2, "semidefinite": 0.8}
    return ZeroLayer(10, 4, {"train": 1, "dev": 1, "test": 1}, plain, plain, fits, Bounds(**{**given, **shares}))


def test_it_says_that_definiteness_costs_more_only_when_it_does():
    bits = {"EE": 8.0, "EDE": 7.0, "EME": 6.2, "EMLPE": 6.1, "EW": 6.0}
    assert "definiteness costs more than symmetry" in made(bits).says[0]
    assert "does not cost more" in made(bits, symmetric=0.6, semidefinite=0.8).says[0]


def test_it_says_what_a_map_bought_only_when_there_was_a_gap():
    bits = {"EE": 8.0, "EDE": 7.0, "EME": 6.2, "EMLPE": 6.1, "EW": 6.0}
    assert "buys back 90%" in " ".join(made(bits).says)
    assert "no gap" in " ".join(made({**bits, "EW": 8.1}).says)
    assert "bought nothing" in " ".join(made({**bits, "EME": 8.5}).says)
    some = made({"EE": 8.0, "EDE": 7.0})
    assert replace(some).bought_back is None
    assert "buys" not in " ".join(some.says)
