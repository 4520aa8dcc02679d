"""What a model predicts without its layers: token -> embedding -> LM head -> logits, the direct path.

    import tiebeam

    lens = tiebeam.Lens.open("model")
    print(lens)                                  # symmetry, definiteness and rank of the whole path
    lens.direct([1, 2, 3]).matrix                # [3, 3], logits of the direct path between chosen tokens
    lens.continuations([1], count=5)             # the five likeliest next tokens on the direct path

`study` fits models without layers to the bigrams of a text, in every form that tying allows.
"""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader

if TYPE_CHECKING:
    from tiebeam.lens.bigram_counts import Bigrams, count_bigrams
    from tiebeam.lens.direct_path import DirectPath, Lens
    from tiebeam.lens.matrix_energy import Energy
    from tiebeam.lens.zero_layer import ZeroLayer, study

__all__ = ["Bigrams", "DirectPath", "Energy", "Lens", "ZeroLayer", "count_bigrams", "study"]

__getattr__ = loader(
    __name__,
    {
        "Bigrams": "tiebeam.lens.bigram_counts",
        "DirectPath": "tiebeam.lens.direct_path",
        "Energy": "tiebeam.lens.matrix_energy",
        "Lens": "tiebeam.lens.direct_path",
        "ZeroLayer": "tiebeam.lens.zero_layer",
        "count_bigrams": "tiebeam.lens.bigram_counts",
        "study": "tiebeam.lens.zero_layer",
    },
)
