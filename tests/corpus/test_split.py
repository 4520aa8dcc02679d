"""The validation split: by document hash, stable, never empty."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tiebeam.corpus.split import Split, SplitCounter
from tiebeam.corpus.text_chunks import TextChunk

FRACTION = 0.3
THRESHOLD = int(FRACTION * 2**64)
DOCUMENTS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=30)


def decide(documents: list[str], fraction: float = FRACTION) -> Split:
    counter = SplitCounter(int(fraction * 2**64))
    for document in documents:
        own = SplitCounter(counter.threshold)
        own.add(TextChunk(document, True))
        counter.merge(own)
    return counter.decide(fraction)


def splits_of(split: Split, documents: list[str]) -> dict[str, str]:
    return {chunk.text: side for side, chunk in split.assign(TextChunk(document, True) for document in documents)}


def test_about_the_requested_fraction_is_held_out() -> None:
    documents = [f"document {number}" for number in range(5000)]
    held_out = sum(side == "val" for side in splits_of(decide(documents, 0.05), documents).values())
    assert 190 < held_out < 310


@given(DOCUMENTS, st.text(min_size=1), st.randoms())
def test_adding_or_reordering_documents_moves_no_other(documents, extra, random) -> None:
    """Except for the one that is moved into an empty split."""
    before, after = decide(documents), decide([*documents, extra])
    assume(before == after == Split(THRESHOLD))
    assigned = splits_of(before, documents)
    shuffled = [*documents, extra]
    random.shuffle(shuffled)
    assert assigned.items() <= splits_of(after, shuffled).items()


@given(DOCUMENTS)
def test_neither_split_is_ever_empty(documents: list[str]) -> None:
    split = decide(documents)
    chunks = list(split.assign(TextChunk(document, True) for document in documents))
    if sum(len(document) for document in documents) > 1:
        assert {side for side, _ in chunks} == {"train", "val"}
    assert "".join(chunk.text for _, chunk in chunks) == "".join(documents)


def test_the_document_moved_to_an_empty_validation_split_is_at_most_half_the_text() -> None:
    documents = ["x" * 10_000, "small one", "small two"]
    assert decide(documents, 1e-9).moved is not None
    assert splits_of(decide(documents, 1e-9), documents)["x" * 10_000] == "train"


def test_the_largest_document_moves_to_train_when_all_are_held_out() -> None:
    documents = ["x" * 100, "small one", "small two"]
    assigned = splits_of(decide(documents, 1 - 1e-9), documents)
    assert assigned == {"x" * 100: "train", "small one": "val", "small two": "val"}


def test_copies_of_a_document_get_the_same_split() -> None:
    documents = [f"text {number}" for number in range(200)]
    split = decide(documents, 0.5)
    first = [side for side, _ in split.assign(TextChunk(document, True) for document in documents)]
    again = [side for side, _ in split.assign(TextChunk(document, True) for document in documents * 2)]
    assert again == first * 2


def test_all_chunks_of_a_document_get_the_same_split() -> None:
    split = decide([f"text {number}" for number in range(50)])
    chunks = [TextChunk("text 1", True), TextChunk(" more", False), TextChunk(" and more", False)]
    assert len({side for side, _ in split.assign(chunks)}) == 1


@given(st.lists(st.text(alphabet="ab \né", min_size=1, max_size=40), min_size=1, max_size=8))
def test_the_end_of_a_single_document_is_held_out(texts: list[str]) -> None:
    chunks = [TextChunk(text, number == 0) for number, text in enumerate(texts)]
    counter = SplitCounter(THRESHOLD)
    for chunk in chunks:
        counter.add(chunk)
    split = counter.decide(0.25)
    assigned = list(split.assign(chunks))
    train = "".join(chunk.text for side, chunk in assigned if side == "train")
    val = "".join(chunk.text for side, chunk in assigned if side == "val")
    assert train + val == "".join(texts)
    if len(train + val) > 1:
        assert train
        assert val
    assert [chunk.starts_document for side, chunk in assigned if side == "val"][:1] in ([True], [])


@pytest.mark.parametrize(
    ("text", "train"), [("one two\nthree four\nfive six", "one two\nthree four\n"), ("abcdefgh", "abcdef")]
)
def test_a_single_document_is_cut_after_a_line_if_possible(text: str, train: str) -> None:
    (side, chunk), *_ = decide([text], 0.25).assign([TextChunk(text, True)])
    assert (side, chunk.text) == ("train", train)
