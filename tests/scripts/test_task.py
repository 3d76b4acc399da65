"""--task: given to the first training, it is in every prompt of every later stage, and nothing else takes its place."""

import pytest

import sft_train
from forage.agent.episode import read_episodes
from forage.agent.options import SearchOptions, read_agent
from tests.tiny_training import tiny_options, tiny_sft, train

pytestmark = pytest.mark.usefixtures("no_plots")
GARDEN = "Answer the question about gardening"
OPENING = (
    "<|im_start|>system\nAnswer the question about gardening: search it first, then write the answer between <answer> "
    "and </answer>.\nTo search, write <tool_call>"
)


def warm(tiny, out, **more):
    sft_train.main(tiny_sft(tiny, out, num_demonstrations=4, **more))
    return [episode.transcript for episode in read_episodes(out / "demonstrations.jsonl")]


@pytest.fixture(scope="module")
def garden(tiny, tmp_path_factory):
    """A policy for gardening."""
    folder = tmp_path_factory.mktemp("garden") / "warm"
    told = warm(tiny, folder, task=f"{GARDEN}.")
    assert len(told) == 4
    assert all(text.startswith(OPENING) for text in told)
    return folder


def transcripts(folder, pattern):
    return [episode.transcript for path in sorted(folder.glob(pattern)) for episode in read_episodes(path)]


def test_training_asks_as_the_warm_start_did(tiny, garden, tmp_path):
    """Its episodes, and those of its evaluations."""
    options = tiny_options(tiny, tmp_path / "run", max_steps=1, policy=garden, search=SearchOptions())
    train(options)
    played = transcripts(tmp_path / "run", "episodes/*/*.jsonl*")
    assert len(played) == 3 * 4 + 2 * 2  # a step, and both held-out questions before and after it
    assert all(text.startswith(OPENING) for text in played)
    assert read_agent(tmp_path / "run").task == GARDEN
