"""How a model scales its embedding and its logits: the one source for the decoder, the lens and the studio.

A family with a file states it there. For other types the table in architectures.json writes each factor as a
short expression over config keys with defaults: `sqrt(dim)`, `1/sqrt(dim)`, `key=1.0`, `1/key=1.0`,
`key=256/dim`, each with an optional `if key=false`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tiebeam._pattern import pattern
from tiebeam.errors import UnreadableInput
from tiebeam.families.registry import Architecture, families, text_level, width

if TYPE_CHECKING:
    from tiebeam.families.spec import Scales

_EXPRESSION = pattern(
    r"(?P<inverse>1/)?(?:(?P<root>sqrt\(dim\))|(?P<key>\w+)=(?P<default>[^/\s]+)(?P<per_dim>/dim)?)"
    r"(?: if (?P<switch>\w+)=(?P<switched>true|false))?"
)


def scales(config: Mapping[str, Any], architecture: Architecture) -> Scales:
    """The factors that `config` gives a model of `architecture`.

    >>> from tiebeam.families import lookup
    >>> scales({"hidden_size": 2304}, lookup("gemma2"))
    Scales(input=48.0, logits=1.0, softcap=30.0)
    """
    from tiebeam.families.parameter_count import essential_fields
    from tiebeam.families.spec import Scales

    inner, _ = text_level(config, architecture)
    keys = {**config, **inner}
    family = families().get(architecture.model_type)
    if family is not None and family.scales is not None:
        return family.scales(essential_fields(keys, family))
    dim = width(config, architecture)
    return Scales(
        _value(architecture.input_scale, keys, dim) or 1.0,
        _value(architecture.logit_scale, keys, dim) or 1.0,
        _value(architecture.softcap, keys, dim),
    )


def scale_keys(architecture: Architecture) -> dict[str, Any]:
    """The config keys in the table's expressions, with their defaults."""
    found: dict[str, Any] = {}
    for expression in (architecture.input_scale, architecture.logit_scale, architecture.softcap):
        match = _EXPRESSION.fullmatch(expression) if expression else None
        for key, default in (("key", "default"), ("switch", "switched")):
            if match and match[key]:
                found[match[key]] = json.loads(match[default])
    return found


def _value(expression: str | None, keys: Mapping[str, Any], dim: int | None) -> float | None:
    if expression is None:
        return None
    match = _EXPRESSION.fullmatch(expression)
    assert match, expression
    if match["switch"] and not keys.get(match["switch"], json.loads(match["switched"])):
        return None
    if (match["root"] or match["per_dim"]) and dim is None:
        raise UnreadableInput(f"config.json gives no width, and the scale {expression} needs it; add hidden_size")
    if match["root"]:
        assert dim is not None
        value = math.sqrt(dim)
    else:
        given = keys.get(match["key"], json.loads(match["default"]))
        if given is None:
            return None
        if isinstance(given, bool) or not isinstance(given, (int, float)) or given == 0:
            raise UnreadableInput(f"config.json: {match['key']} is {json.dumps(given)}; a scale is a number, not 0")
        value = float(given) / dim if match["per_dim"] and dim is not None else float(given)
    return 1 / value if match["inverse"] else value
