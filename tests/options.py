"""Options for tests: change any field of nested option dataclasses by its name."""

from dataclasses import fields, is_dataclass, replace


def with_options(options, **more):
    """`options` with these values, wherever among its nested parts each field is. Example: with_options(o, k=5)."""
    assert not (unknown := more.keys() - names_of(options)), f"no option is called {', '.join(unknown)}"
    own = {field.name: getattr(options, field.name) for field in fields(options)}
    nested = {
        name: with_options(part, **{n: v for n, v in more.items() if n in names_of(part)})
        for name, part in own.items()
        if is_dataclass(part) and name not in more
    }
    return replace(options, **nested, **{name: more[name] for name in own if name in more})


def names_of(options):
    nested = [getattr(options, field.name) for field in fields(options) if is_dataclass(getattr(options, field.name))]
    return {field.name for field in fields(options)}.union(*map(names_of, nested))
