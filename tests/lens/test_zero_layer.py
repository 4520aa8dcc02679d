"""The bigram study of a corpus: its splits, and conclusions that follow from the numbers."""

import numpy as np
import pytest

from tiebeam.corpus import build_corpus
from tiebeam.errors import BadRequest
from tiebeam.lens.bigrams import Fit
from tiebeam.lens.rank_bounds import Bounds
from tiebeam.lens.zero_layer import ZeroLayer, count_splits, dev_mask, study


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    where = tmp_path_factory.mktemp("corpus")
    return build_corpus([], where / "c", vocab=300, max_bytes=200_000)


def test_forms_are_ordered_on_real_text(corpus):
    found = study(corpus, dim=8, steps=80)
    bits = {form: row.bits for form, row in found.fits.items()}
    assert bits["EE"] > bits["EME"] > found.smoothed.bits
    assert bits["EE"] > bits["EW"]
    assert found.unigram.bits > bits["EW"]
    assert found.to_dict()["forms"]["EE"]["params"] == corpus.vocab * 8


def test_train_and_dev_share_no_pair(corpus):
    train, dev, test = count_splits(corpus)
    everything = corpus.train[:]
    inner = int(((everything[:-1] != corpus.boundary) & (everything[1:] != corpus.boundary)).sum())
    assert train.total + dev.total <= inner
    assert train.total + dev.total >= inner - 1  # a cut inside one document loses the pair across it
    assert test.total > 0


def test_the_dev_split_has_whole_documents():
    tokens = np.tile([0, 1, 2, 3], 100)  # 100 documents of three tokens
    held = dev_mask(tokens, 0).reshape(100, 4)
    assert (held.all(axis=1) == held.any(axis=1)).all()
    assert held.any(axis=1).sum() == 5


def test_the_dev_split_of_a_single_document_is_its_end():
    held = dev_mask(np.arange(1, 101), 0)
    assert held.sum() == 5
    assert held[-5:].all()


@pytest.mark.parametrize(
    ("options", "word"), [({"forms": ["EX"]}, "EX"), ({"dim": 0}, "dim=0"), ({"dim": 10_000}, "exceeds"),
                          ({"top": 0}, "top=0")]
)  # fmt: skip
def test_wrong_requests_are_refused(corpus, options, word):
    with pytest.raises(BadRequest, match=word):
        study(corpus, steps=1, **{"dim": 4, **options})


def made(bits, **shares):
    fits = {form: Fit(form, value, 100) for form, value in bits.items()}
    plain = Fit("", 9.0, 10)
    given = {"dim": 4, "antisymmetric": 0.2, "negative": 0.7, "any": 0.1, "symmetric": 0.2, "semidefinite": 0.8}
    return ZeroLayer(10, 4, {"train": 1, "dev": 1, "test": 1}, plain, plain, fits, Bounds(**{**given, **shares}))


BITS = {"EE": 8.0, "EDE": 7.0, "EME": 6.2, "EMLPE": 6.1, "EW": 6.0}


def test_definiteness_is_reported_as_the_larger_cost_only_when_it_is():
    assert made(BITS).conclusions[0].startswith("Definiteness costs more than symmetry")
    assert made(BITS, symmetric=0.6, semidefinite=0.8).conclusions[0].startswith("Definiteness does not cost more")


def test_each_form_is_compared_with_the_tied_one_with_its_sign():
    text = made(BITS).conclusions
    assert text[1] == "E.diag(±1).Eᵀ reaches 7.00 bits per token, -1.00 against E.Eᵀ (8.00)."
    assert text[2] == "E.W reaches 6.00 bits per token, -2.00 against E.Eᵀ (8.00)."
    worse = made({**BITS, "EDE": 8.38}).conclusions
    assert worse[1] == "E.diag(±1).Eᵀ reaches 8.38 bits per token, +0.38 against E.Eᵀ (8.00)."


def test_a_map_closes_a_gap_only_when_there_is_one():
    assert "closes 90% of the gap" in " ".join(made(BITS).conclusions)
    assert "no gap to close" in " ".join(made({**BITS, "EW": 8.1}).conclusions)
    assert "closes nothing of the gap" in " ".join(made({**BITS, "EME": 8.5}).conclusions)
    some = made({"EE": 8.0, "EDE": 7.0})
    assert some.gap_closed is None
    assert len(some.conclusions) == 1


def test_fits_that_did_not_converge_get_no_conclusions():
    found = made({**BITS, "EDE": 9.5})  # the unigram has 9.0
    assert found.unconverged == ["EDE"]
    assert len(found.conclusions) == 1
