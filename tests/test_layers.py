"""The house keeps its order: a folder of forage/ is a layer, and imports only from itself and from layers above it."""

import pytest

from tests import ROOT
from tests.draw_imports import folder_of, imported, module_files

# From the top: what needs nothing, to what needs all of it. Folders on one line know nothing of each other.
LAYERS = [
    ["base", "extras"],  # the modules of forage/ itself
    ["policy", "data.scraping"],
    ["data", "engines"],
    ["store"],
    ["agent", "extras.serving"],
    ["rollout", "runs", "extras.questions", "extras.judge"],
    ["grpo", "sft", "evaluation"],
    [
        "publishing", "extras.chat", "extras.testtime", "extras.doctor", "extras.planning", "extras.rewriter",
        "extras.gateway", "extras.environments",
    ],
    ["scripts"],
]  # fmt: skip
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
SCRIPTS = {path.stem for path in ROOT.glob("*.py")}
# Packages of the core beside the road: what grpo_train.py can do without. They know the road, which does not know them.
BESIDE = (
    "evaluate", "forage.evaluation", "forage.publishing", "forage.runs.plots",
    "forage.runs.report", "forage.runs.trackers", "forage.sft",
)  # fmt: skip
# What the road imports of them nevertheless; to become empty.
STILL_IMPORTED = {"forage.runs.trackers"}
# The one thing that other scripts take from a script is what users edit there.
EDITED_BY_USERS = {("grpo_train", "grpo_rollout"), ("evaluate", "grpo_rollout"), ("nano_grpo", "grpo_rollout")}


MODULES = module_files()
IMPORTS = {module: sorted(set(imported(path.read_text(), MODULES)) - {module}) for module, path in MODULES.items()}


def test_every_folder_has_its_layer():
    assert {folder_of(module) for module in MODULES} <= LEVEL.keys()


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_up(module):
    here = folder_of(module)
    against = [
        other for other in IMPORTS[module] if folder_of(other) != here and LEVEL[folder_of(other)] >= LEVEL[here]
    ]
    assert not against, f"{module} ({here}) may not import {', '.join(against)}"


def test_the_core_knows_no_extra():
    """Extras plug in by the dictionaries that users edit or by a name, or read finished files."""
    core = [module for module in MODULES if module.startswith("forage") and not module.startswith("forage.extras")]
    assert len(core) > 90
    assert [(m, o) for m in core for o in IMPORTS[m] if o.startswith("forage.extras")] == []


def reached_from(module):
    """All that is imported when it runs, inside functions too."""
    found, left = set(), [module]
    while left:
        if (here := left.pop()) not in found:
            found.add(here)
            left += IMPORTS[here]
    return found


def test_the_road_knows_nothing_beside_it():
    road = reached_from("grpo_train")
    assert len(road) > 40
    reached = {module for module in road if module.startswith((*BESIDE, "forage.extras"))}
    assert reached <= STILL_IMPORTED, {name: sorted(m for m in road if name in IMPORTS[m]) for name in reached}


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_no_script_is_imported_for_its_machinery(script):
    others = {(script, other) for other in IMPORTS[script] if other in SCRIPTS}
    assert others <= EDITED_BY_USERS
