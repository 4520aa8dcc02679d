"""A few kilobytes of tokenized text, enough to train a tiny model."""

from tiebeam.corpus import build_corpus


def small_corpus(tmp_path_factory, vocab=300):
    where = tmp_path_factory.mktemp("text")
    for i in range(30):
        (where / f"{i}.txt").write_text(f"the cat {i} sat on the mat and the dog {i * 7} ran to the park. " * 20)
    return build_corpus([where], tmp_path_factory.mktemp("corpus") / "c", vocab=vocab)
