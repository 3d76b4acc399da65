"""Where: which documents a search may find, said of their metadata in the language of Chroma's `where`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from forage.errors import UserError

Where: TypeAlias = Mapping[str, Any]
"""Examples: {"year": 2020}; {"$and": [{"year": {"$gte": 2020}}, {"kind": {"$in": ["news", "blog"]}}]}."""
Condition: TypeAlias = Callable[[Mapping[str, Any]], bool]

ORDER = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
EQUAL = ("$eq", "$ne", "$in", "$nin")
JOINED = {"$and": all, "$or": any}


def condition(where: Any) -> Condition:
    """Whether some metadata fit. $ne and $nin also fit where the key is missing; true is no 1, but 1.0 is."""
    if not isinstance(where, Mapping) or len(where) != 1:
        raise UserError(f"where {where!r:.80} must be an object with one key; join several with $and")
    [(key, said)] = where.items()
    if key in JOINED:
        if not isinstance(said, list) or len(said) < 2:
            raise UserError(f"where: {key} takes a list of two conditions or more")
        parts, join = list(map(condition, said)), JOINED[key]
        return lambda metadata: join(part(metadata) for part in parts)
    if not isinstance(key, str) or key.startswith("$"):
        raise UserError(f"where: {key!r} is no key of metadata, and none of {', '.join(JOINED)}")
    return _comparison(key, said if isinstance(said, Mapping) else {"$eq": said})


def _comparison(key: str, said: Mapping[Any, Any]) -> Condition:
    name, value = next(iter(said.items())) if len(said) == 1 else ("", None)
    if name in ORDER:
        if not _is_number(value):
            raise UserError(f"where: {name} takes a number, not {value!r:.80}")
        in_order: Callable[[Any, Any], bool] = ORDER[name]
        return lambda metadata: _is_number(metadata.get(key)) and in_order(metadata[key], value)
    if name not in EQUAL:
        raise UserError(f"where: {key} needs one operator of {', '.join([*EQUAL, *ORDER])}, not {dict(said)!r:.80}")
    values = value if name in ("$in", "$nin") else [value]
    if not isinstance(values, list) or {*map(type, values)} not in ({str}, {int}, {float}, {bool}):
        raise UserError(f"where: {name} takes texts, numbers or truths, of one kind, not {value!r:.80}")
    known, wanted = frozenset(map(_told_apart, values)), name in ("$eq", "$in")
    return lambda metadata: (_told_apart(metadata.get(key)) in known) == wanted


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _told_apart(value: Any) -> tuple[bool, Any]:
    """For Python, True is 1."""
    return isinstance(value, bool), value
