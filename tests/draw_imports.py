"""Draw how the folders of forage/ import each other, from the code itself.

    python -m tests.draw_imports                       prints the drawing (mermaid)
    python -m tests.draw_imports docs/layout.md        puts it into that page, between its two marks

An arrow A --> B says that modules of A import modules of B; arrows that a longer path already implies are left out.
"""

import ast
import graphlib
import sys
from collections import Counter
from pathlib import Path

from tests import ROOT

BEGIN, END = "<!-- tests/draw_imports.py begins -->", "<!-- tests/draw_imports.py ends -->"


def module_files():
    """Each module's file by its dotted name: the scripts, and forage/ without its empty __init__ files."""
    paths = [*ROOT.glob("*.py"), *(path for path in (ROOT / "forage").rglob("*.py") if path.name != "__init__.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(paths)}


def imported(source, modules):
    """The project's modules that a source imports, inside functions too. `from a import b` may name the module a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules or node.module in modules:
                    yield inner if inner in modules else node.module


def folder_of(module):
    """Example: forage.data.records is in data, forage.files in base, grpo_train in scripts."""
    if module.split(".")[0] != "forage":
        return "scripts"
    return ".".join(module.split(".")[1:-1]) or "base"


def without_shortcuts(edges):
    """The edges that no longer path implies. Example: a -> b, b -> c, a -> c gives a -> b, b -> c."""

    def reached(start):
        return {start}.union(*(reached(other) for other in edges.get(start, ())))

    return {
        start: {end for end in ends if not any(end in reached(other) for other in ends - {end})}
        for start, ends in edges.items()
    }


def draw():
    modules = module_files()
    imports = {name: set(imported(path.read_text(), modules)) - {name} for name, path in modules.items()}
    tuple(graphlib.TopologicalSorter(imports).static_order())  # raises CycleError if modules import in a circle
    counts = Counter(map(folder_of, modules))
    edges = {folder: set() for folder in counts}
    for name, others in imports.items():
        edges[folder_of(name)] |= {folder_of(other) for other in others} - {folder_of(name)}
    order = in_layers(edges)
    return "\n".join([
        "```mermaid", "flowchart TD",
        *(f'    {node(folder)}["{folder}<br>{counts[folder]} modules"]' for folder in reversed(order)),
        *arrows(without_shortcuts(edges), order),
        "```", "",
        f"{len(modules)} modules, {sum(map(len, edges.values()))} imports of one folder by another; 0 cycles of "
        "modules, 0 of folders.",
    ])  # fmt: skip


def in_layers(edges):
    """Folders by depth of imports, shallowest first. Raises CycleError if folders import in a circle."""
    depth = {}
    for folder in graphlib.TopologicalSorter(edges).static_order():
        depth[folder] = 1 + max((depth[other] for other in edges[folder]), default=0)
    return sorted(edges, key=lambda folder: (depth[folder], folder))


def node(folder):
    return folder.replace(".", "_")


def arrows(edges, order):
    """A line for each folder that imports others."""
    to = {folder: sorted(edges[folder], key=order.index, reverse=True) for folder in reversed(order)}
    return [f"    {node(a)} --> {' & '.join(map(node, ends))}" for a, ends in to.items() if ends]


def into_page(page, drawing):
    """The page with the drawing between its two marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{drawing}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if sys.argv[1:]:
        path = Path(sys.argv[1])
        path.write_text(into_page(path.read_text(), draw()))
    else:
        print(draw())
