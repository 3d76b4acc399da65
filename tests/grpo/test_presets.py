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


def test_a_config_file_may_name_one(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("preset: gspo\nclip_high: 0.001\n")
    loss = options_of("--config", str(path)).update.loss
    assert (loss.loss, loss.clip_low, loss.clip_high) == ("gspo", 3e-4, 0.001)
