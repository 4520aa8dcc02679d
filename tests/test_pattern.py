"""What replaces a regular expression or a Path where a process starts agrees with it."""

import re
import sys
from pathlib import Path, PurePath

import pytest

from tiebeam import _visible
from tiebeam._pattern import pattern
from tiebeam.checkpoint.open import _normal
from tiebeam.families.tensor_names import _COMPILED, _INSERTED, _RENAMED, plain, unwrapped
from tiebeam.inspection.parameters import _BUFFERS, _MASKS
from tiebeam.inspection.report import _last_part
from tiebeam.inspection.vocabulary_tensors import _BIASES, _BY_NAME, _SCORES


def test_a_pattern_is_compiled_at_its_first_use_and_finds_the_same() -> None:
    text, ours, theirs = "A1 b22", pattern(r"(?P<letter>[a-z])(\d+)", re.I), re.compile(r"(?P<letter>[a-z])(\d+)", re.I)
    assert "search" not in vars(ours)
    for method in ("search", "match", "fullmatch"):
        found, known = (getattr(one, method)(text) for one in (ours, theirs))
        assert (found and found.groupdict()) == (known and known.groupdict())
    assert ours.sub("x", text) == theirs.sub("x", text)
    assert [found[0] for found in ours.finditer(text)] == ["A1", "b22"]
    assert ours.pattern == theirs.pattern
    assert "search" in vars(ours)


def test_no_printable_character_is_unsafe() -> None:
    unsafe = re.compile(_visible._UNSAFE.pattern)
    assert not [c for c in map(chr, range(sys.maxunicode + 1)) if c.isprintable() and unsafe.search(c)]


NAMES = [
    "model.layers.0.attn.bias", "h.0.attn.masked_bias", "inv_freq", "x.inv_freq", "xinv_freq", "rope_freqs.weight",
    "a.rope_factors_long.weight", "attention.bias", "my_attention.bias", "score.weight", "v_head.summary.weight",
    "underscore.weight", "lm_head.bias", "final_logits_bias", "debias", "d2t", "running_mean", "bn.running_var",
    "module.lm_head.weight", "_orig_mod.lm_head.weight", "a._fsdp_wrapped_module.b.weight", "lm_head.qweight",
    "base_model.model.x.base_layer.weight", "x.modules_to_save.default.weight", "x.parametrizations.weight.original",
    "x.original_module.weight", "x_orig_mod.weight", "x.weight_packed", "x.codes",
    "model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", "x.bigram_hash.embed.weight", "ngram.table",
    "medusa_heads.0.1.weight", "program.weight",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_ends_of_names_agree_with_regular_expressions(name: str) -> None:
    buffer = (
        r"(^|\.)(inv_freq|masked_bias|position_ids|token_type_ids|num_batches_tracked|running_(mean|var)"
        r"|final_logits_bias|d2t|t2d|rope_freqs\.weight|rope_factors_(long|short)\.weight)$"
    )
    slow = {
        _BUFFERS: buffer,
        _MASKS: r"(^|\.)(attn|attention|self_attention)\.bias$",
        _SCORES: r"(^|\.)(score|v_head\.summary|value_head)\.weight$",
        _BIASES: r"(^|\.)(final_logits_bias|bias)$",
    }
    for ends, known in slow.items():
        assert f".{name}".endswith(ends) == bool(re.search(known, name))
    for part, known_name in _BY_NAME.values():
        assert part in name or not known_name.search(name)
    assert plain(name) == _RENAMED.sub(".weight", _INSERTED.sub("", name))
    assert unwrapped([name, "other"]) == ({name: new} if (new := _COMPILED.sub("", name)) != name else {})


@pytest.mark.parametrize(
    "path",
    ["a", ".", "./a", "a/", "a/.", "a//b", "a/./b", "a/../b", "/", "/a", "//a", "..", "../a/", "a b/ü", "/a/b/."],
)
def test_paths_are_written_as_pathlib_does(path: str) -> None:
    assert _normal(path) == str(Path(path))
    assert _last_part(path) == PurePath(path).name
