"""Options for tests: change any field of nested option dataclasses by its name."""

from dataclasses import fields, is_dataclass, replace


def with_options(options, **more):
    """`options` with these values, wherever among its nested parts each field is. Example: with_options(o, k=5)."""
    own = {field.name: getattr(options, field.name) for field in fields(options)}
    nested = {name: with_options(part, **more) for name, part in own.items() if is_dataclass(part) and name not in more}
    return replace(options, **nested, **{name: more[name] for name in own if name in more})
