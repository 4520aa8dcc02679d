"""One list of config levels, which every reader and writer of a nested value uses."""

from __future__ import annotations

from tiebeam.families import known_types, lookup
from tiebeam.families.config_levels import FLAG, TEXT_KEYS, config_levels, flag_levels
from tiebeam.families.registry import vocabulary


def test_levels_are_the_top_and_every_text_config_inside_it() -> None:
    config = {"thinker_config": {"text_config": {"a": 1}}, "decoder": {}, "vision_config": {"text_config": {}}}
    assert [path for path, _ in config_levels(config)] == [
        (), ("thinker_config",), ("thinker_config", "text_config"), ("decoder",),
    ]  # fmt: skip


def test_flags_are_found_at_every_level_and_under_a_legacy_name() -> None:
    config = {FLAG: None, "generator": {FLAG: True, "tie_embedding": False}, "text_config": 3}
    assert flag_levels(config) == {(FLAG,): None, ("generator", FLAG): True}
    assert flag_levels(config, "tie_embedding")[("generator", "tie_embedding")] is False
    assert flag_levels(None) == {}


def test_the_list_has_the_text_level_of_every_architecture_that_can_be_tied() -> None:
    keys = {entry.text for entry in map(lookup, known_types()) if entry and entry.text and entry.decides}
    assert keys <= set(TEXT_KEYS)
    assert len(keys) > 2


def test_the_vocabulary_of_an_unknown_type_is_found_at_every_level() -> None:
    for key in TEXT_KEYS:
        assert vocabulary({key: {"vocab_size": 9}}, None) == 9
