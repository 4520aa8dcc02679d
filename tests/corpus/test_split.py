"""The validation split: by a document's own text, stable, never empty."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.corpus.split import Census, Split
from tiebeam.corpus.text_sources import Piece

FRACTION = 0.3
THRESHOLD = int(FRACTION * 2**64)
DOCUMENTS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=30)


def settle(documents: list[str], fraction: float = FRACTION) -> Split:
    census = Census(int(fraction * 2**64))
    for document in documents:
        own = Census(census.threshold)
        own.add(Piece(document, True))
        census.merge(own)
    return census.settle(fraction)


def sides(split: Split, documents: list[str]) -> dict[str, str]:
    return {piece.text: side for side, piece in split.sides(Piece(document, True) for document in documents)}


def test_about_the_asked_fraction_is_held_out() -> None:
    documents = [f"document {number}" for number in range(5000)]
    held_out = sum(side == "val" for side in sides(settle(documents, 0.05), documents).values())
    assert 190 < held_out < 310


@given(DOCUMENTS, st.text(min_size=1), st.randoms())
def test_adding_removing_or_reordering_documents_moves_no_other(documents, extra, random) -> None:
    """But for the one that is moved when chance leaves a side empty."""
    before, after = settle(documents), settle([*documents, extra])
    if before != Split(THRESHOLD) or after != Split(THRESHOLD):
        return
    placed = sides(before, documents)
    shuffled = [*documents, extra]
    random.shuffle(shuffled)
    assert placed.items() <= sides(after, shuffled).items()


@given(DOCUMENTS)
def test_neither_side_is_ever_empty(documents: list[str]) -> None:
    split = settle(documents)
    pieces = list(split.sides(Piece(document, True) for document in documents))
    if sum(len(document) for document in documents) > 1:
        assert {side for side, _ in pieces} == {"train", "val"}
    assert "".join(piece.text for _, piece in pieces) == "".join(documents)


def test_the_document_chosen_for_an_empty_validation_side_is_not_most_of_the_text() -> None:
    documents = ["x" * 10_000, "small one", "small two"]
    assert settle(documents, 1e-9).moved is not None
    assert sides(settle(documents, 1e-9), documents)["x" * 10_000] == "train"


def test_the_largest_document_returns_when_all_are_held_out() -> None:
    documents = ["x" * 100, "small one", "small two"]
    placed = sides(settle(documents, 1 - 1e-9), documents)
    assert placed == {"x" * 100: "train", "small one": "val", "small two": "val"}


def test_copies_of_a_document_land_on_one_side() -> None:
    documents = [f"text {number}" for number in range(200)]
    split = settle(documents, 0.5)
    first = [side for side, _ in split.sides(Piece(document, True) for document in documents)]
    again = [side for side, _ in split.sides(Piece(document, True) for document in documents * 2)]
    assert again == first * 2


def test_a_long_document_is_not_divided() -> None:
    split = settle([f"text {number}" for number in range(50)])
    pieces = [Piece("text 1", True), Piece(" more", False), Piece(" and more", False)]
    assert len({side for side, _ in split.sides(pieces)}) == 1


@given(st.lists(st.text(alphabet="ab \né", min_size=1, max_size=40), min_size=1, max_size=8))
def test_the_end_of_a_single_document_is_held_out(texts: list[str]) -> None:
    pieces = [Piece(text, number == 0) for number, text in enumerate(texts)]
    census = Census(THRESHOLD)
    for piece in pieces:
        census.add(piece)
    split = census.settle(0.25)
    placed = list(split.sides(pieces))
    train = "".join(piece.text for side, piece in placed if side == "train")
    val = "".join(piece.text for side, piece in placed if side == "val")
    assert train + val == "".join(texts)
    if len(train + val) > 1:
        assert train
        assert val
    assert [piece.first for side, piece in placed if side == "val"][:1] in ([True], [])


@pytest.mark.parametrize(
    ("text", "train"), [("one two\nthree four\nfive six", "one two\nthree four\n"), ("abcdefgh", "abcdef")]
)
def test_a_single_document_is_cut_after_a_line_or_wherever_there_is_none(text: str, train: str) -> None:
    (side, piece), *_ = settle([text], 0.25).sides([Piece(text, True)])
    assert (side, piece.text) == ("train", train)
