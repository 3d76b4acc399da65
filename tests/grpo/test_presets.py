"""--preset NAME stands for a method's options; what is given beside it wins."""

import pytest

from forage.arguments import expanded, parse
from forage.grpo.options import PRESETS, TrainOptions


def options_of(*arguments):
    return parse(TrainOptions, expanded(arguments, PRESETS))


@pytest.mark.parametrize("name", PRESETS)
def test_each_is_options_that_the_script_takes(name):
    options = options_of("--preset", name)
    options.check()
    chosen = {**vars(options), **vars(options.update), **vars(options.update.loss)}
    assert {option: chosen[option] for option in PRESETS[name]} == PRESETS[name]
