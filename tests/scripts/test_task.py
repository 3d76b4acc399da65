"""--task: given to the first training, it is in every prompt of every later stage, and nothing else takes its place."""

import pytest

import evaluate
import sft_train
from forage.agent.episode import read_episodes, write_episodes
from forage.agent.options import AgentSettings, SearchOptions, read_agent
from forage.data.records import read_questions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.errors import UserError
from forage.evaluation import expert
from forage.evaluation.options import EvaluationOptions
from forage.grpo.options import GuidanceOptions
from forage.sft.options import SFTOptions
from tests.options import with_options
from tests.tiny import rewards_of_tokens, teach
from tests.tiny_training import tiny_options, train

pytestmark = pytest.mark.usefixtures("no_plots")
GARDEN = "Answer the question about gardening"
OPENING = (
    "<|im_start|>system\nAnswer the question about gardening: search it first, then write the answer between <answer> "
    "and </answer>.\nTo search, write <tool_call>"
)


def warm(tiny, out, **more):
    options = SFTOptions(
        data=tiny / "data", policy=tiny / "policy", output_dir=out, num_demonstrations=4, max_steps=2, eval_every=2,
        batch_size=2, eval_questions=0, eval_share=0.3,
    )  # fmt: skip
    sft_train.main(with_options(options, **{"mode": "sparse"} | more))
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
    """Its episodes, those of its evaluations, and the demonstrations it vets."""
    guidance = GuidanceOptions(garden / "demonstrations.jsonl")
    options = tiny_options(
        tiny, tmp_path / "run", max_steps=1, policy=garden, search=SearchOptions(), guidance=guidance
    )
    train(options)
    played = transcripts(tmp_path / "run", "episodes/*/*.jsonl*")
    assert len(played) == 3 * 4 + 2 * 2  # a step, and both held-out questions before and after it
    assert all(text.startswith(OPENING) for text in played)
    assert read_agent(tmp_path / "run").task == GARDEN
    with pytest.raises(
        UserError, match=f'--task "Answer all": the policy was trained with "{GARDEN}", as .*/run/agent'
    ):
        train(with_options(options, task="Answer all"))


def test_demonstrations_for_another_task_are_refused(tiny, garden, tmp_path):
    with pytest.raises(UserError, match="does not begin with this policy's prompt; it has another chat template or ta"):
        warm(tiny, tmp_path / "other", num_demonstrations=0, demonstrations=(garden / "demonstrations.jsonl",))


def test_an_evaluation_and_expert_iteration_ask_as_training_did(tiny, garden, tmp_path, monkeypatch):
    monkeypatch.setattr("forage.evaluation.report.draw_evaluation", lambda rows, path: None)
    options = EvaluationOptions(
        data=tiny / "data", policy=(f"garden={garden}",), output_dir=tmp_path, engine=EngineOptions(engine="local"),
        cutoffs=(1,), sampling=Sampling(), systems=("plain_rag", "single"), split="train", eval_questions=2,
        search=SearchOptions(),
    )  # fmt: skip
    evaluate.main(options, rewards_of_tokens)
    played = transcripts(tmp_path, "episodes/garden/*.jsonl")
    assert len(played) == 4
    assert all(text.startswith(OPENING) for text in played)
    # A strategy's changed prompt is replaced by the policy's own.
    question = read_questions(tiny / "data" / "train.jsonl")[0]
    write_episodes(tmp_path / "one.jsonl", teach(tiny, [question], AgentSettings(mode="sparse", task="Answer this")))
    chosen = (tmp_path / "one.jsonl",), tiny / "data", garden, tmp_path / "best.jsonl"
    expert.main(expert.Options(*chosen, by="token_f1", min_score=0.0))
    [best] = read_episodes(tmp_path / "best.jsonl")
    assert best.transcript.startswith(OPENING)
