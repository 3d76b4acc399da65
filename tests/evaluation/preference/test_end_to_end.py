"""On the packaged models: learn a scorer from rated episodes, and play the systems that choose by it."""

import json
from pathlib import Path

import pytest

import evaluate
from forage.agent.episode import write_episodes
from forage.agent.options import AgentSettings, SearchOptions
from forage.agent.protocol import Protocol
from forage.data.records import read_questions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.evaluation.options import EvaluationOptions
from forage.evaluation.policies import find_policy
from forage.evaluation.preference.card import read_card
from forage.evaluation.preference.model import Learning
from forage.evaluation.preference.train_scorer import Options, main
from forage.policy.policy import load_tokenizer
from forage.store.embedder import PACKAGED_EMBEDDER
from tests.options import with_options
from tests.rated_samples import samples_of


@pytest.mark.slow
def test_learn_and_choose(tiny_data, model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("forage.evaluation.report.draw_evaluation", lambda rows, path: None)
    played = EvaluationOptions(
        data=tiny_data, policy=(f"base={model_folder}",), systems=("best_of_8",), output_dir=tmp_path / "eval",
        eval_questions=2, engine=EngineOptions(engine="local"), sampling=Sampling(temperature=1.0),
        search=SearchOptions(mode="sparse", max_turns=2, max_turn_tokens=24, force_search=True),
    )  # fmt: skip
    protocol = Protocol.playing(load_tokenizer(find_policy("base", str(model_folder), "").card), AgentSettings())
    rated = [samples_of(question, protocol) for question in read_questions(tiny_data / "train.jsonl")[:4]]
    write_episodes(tmp_path / "rated.jsonl", [episode for samples in rated for episode in samples])
    main(
        Options(
            (tmp_path / "rated.jsonl",), tiny_data, Path(model_folder), tmp_path / "scorer", margin=0.01, held_out=0.25,
            learning=Learning(steps=20),
        )
    )  # fmt: skip
    card = read_card(tmp_path / "scorer")
    assert (card.embedder, card.learnt_from["questions"], card.held_out["questions"]) == (PACKAGED_EMBEDDER, 3, 1)
    assert card.learnt_from["pairs"] > 0
    systems = ("single", "best_of_8", "learned_8", "oracle_8", "learned_tree")
    evaluate.main(with_options(played, systems=systems, scorer=tmp_path / "scorer"))
    rows = json.loads((tmp_path / "eval" / "eval.json").read_text())["systems"]
    assert [row["system"] for row in rows] == list(systems)
