"""Rounds of self-evolution: search, keep the best, train, and search again with the better policy; all measured.

    python -m forage.extras.testtime.self_evolve --data data --policy models/warm --output-dir runs/evolution

Runs the other scripts one after another. Round r, in round_r/ of --output-dir:

    played/      evaluate.py plays new training questions with the policy of round r - 1 (in round 1: --policy), in
                 round 1 by best_of:8, later by --system, which may choose by the last round's scorer
    scorer/      train_scorer.py trains the preference model on the candidates of all rounds
    kept.jsonl   each question's best episode by the rewards, if it beats the policy's first sample
    policy/      sft_train.py imitates what all rounds kept

After the last round, evaluate.py compares the policies of all rounds with the start, round_0, on held-out questions,
in measured/. Each policy plays as --policy's agent.json says. Re-run the same command to resume: finished stages are
skipped, and each script continues where it was. A larger --rounds continues from finished rounds.

Every training starts from --policy, not from the policy of the round before, and imitates the episodes of all rounds.
So what one round learnt badly is passed on only in the episodes that were chosen, not in the weights; more rounds do
not mean more updates of one policy; and a round's policy depends only on its files. The price is training on old
episodes again, which is short compared with the search.

Follows rStar-Math, https://arxiv.org/abs/2501.04519. Differences: it starts from a policy that can search already (a
warm start), not from one taught by a larger model's solutions; it keeps one best episode per question, not several;
steps are not checked by code; questions that no search solved are not tried again; the paper's preference model is a
language model. Reference answers of training questions choose the episodes, as correct results do in the paper.

Where it doesn't help: a policy whose samples hardly differ, since the search then finds nothing better; rewards that
can be earned without answering; and many rounds on few questions, as each round narrows what the policy does. With
--system best_of:8:learned the scorer has no say in what is kept, as the rewards choose among the same eight samples;
with tree:learned it guides the search. The scorer knows the mistakes of the policy of the round before.

Of each training question the best episode that was played is chosen, for the next warm start to imitate. That is expert
iteration, as in https://arxiv.org/abs/1705.08439 and STaR, https://arxiv.org/abs/2203.14465: a search makes
better episodes than the policy, and the policy learns to do without the search.

Kept is the episode of the highest reward among those that are well-formed and found a chunk with the answer, if its
reward is higher than that of the policy's first sample: what the policy says by itself it need not learn. Rewards are
those of get_reward_functions in grpo_rollout.py, computed anew.

A prompt that a strategy changed (critiques, revisions) is replaced by the question's plain prompt, so the policy learns
to say without the hint what it said with it; the log-probabilities belong to the other prompt, so they become 0, as the
teacher's are. Tokens that a strategy forced have mask 0 and are not learnt, but what the policy said after them is.

Where it doesn't help: with a reward that the policy can earn without answering; in many rounds, each of which narrows
what the policy does; and a policy whose first sample is nearly always the best leaves little to learn from.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from forage.agent.episode import Episode, Turn, write_episodes
from forage.agent.options import SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.rewards import ROUNDING, RewardFunction, rewarded, rewards_of
from forage.agent.searcher import Searcher
from forage.agent.vetting import Vetting
from forage.arguments import run_script
from forage.data.records import Question
from forage.data.splits import read_held_out, read_train, read_training_questions
from forage.engines.base import EngineOptions, Sampling
from forage.errors import UserError, check_at_least_one
from forage.evaluation.options import EvaluationOptions, is_learned, read_system
from forage.evaluation.outcomes import OutcomeLog
from forage.extras.testtime import train_scorer
from forage.files import check_apart, check_folder, filling_folder
from forage.policy.adapters import adapter_path
from forage.policy.manifest import read_policy_manifest
from forage.rollout.agreement import open_embedder
from forage.runs.run_folder import keep_options
from forage.sft.options import SFTOptions
from forage.store.opening import digests_of, manifest_at, open_address
from forage.store.options import StoreAddress

EVALUATE, ROLLOUT = "evaluate", "grpo_rollout"  # the scripts in which users name their systems and rewards
PLAYER = "policy"  # the name under which a round's policy plays training questions
FIRST = "single"  # the system that plays one sample: what a kept episode has to beat
FIRST_SEARCH = "best_of:8"  # of round 1, when there is no learned scorer yet
MEASURED = ("single", "best_of:8")
# These may change between calls with one output folder: what is there stays valid, and more rounds go on from it.
FREE = (
    "rounds", "concurrency", "address.store_patience",
    *(f"engine.{each.name}" for each in fields(EngineOptions)),
)  # fmt: skip


@dataclass(frozen=True)
class EvolveOptions:
    """The rounds."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy folder to start from: it plays the first round, and every round's training starts from it."""
    output_dir: Path = Path("runs/evolution")
    """Folder for all rounds."""
    rounds: int = 2
    """Number of rounds. A larger number continues from those that are finished."""
    questions: int = 500
    """Training questions per round. No question is played in two rounds."""
    system: str = "tree:learned"
    """System of evaluate.py that searches from round 2 on, such as tree:learned or best_of:8:learned. Round 1 uses
    best_of:8."""
    eval_questions: int = 200
    """Held-out questions to measure all rounds' policies on; 0: all."""
    max_steps: int = 100
    """Updates of each round's training."""
    learning_rate: float = 5e-4
    """Learning rate of each round's training; 0: as in sft_train.py."""
    engine: EngineOptions = EngineOptions()
    address: StoreAddress = StoreAddress()
    sampling: Sampling = Sampling(temperature=0.7)
    concurrency: int = 16
    """Questions played at once. With --engine local also the number of sequences sampled in one batch."""
    seed: int = 0
    """Seed for drawing questions, for sampling and for training."""

    def check(self) -> None:
        """Refuse what a stage would refuse hours later, and questions that are held out as well."""
        self.address.check()
        check_at_least_one(self, "rounds", "questions", "max_steps", "concurrency")
        read_system(self.system, importlib.import_module(EVALUATE).SYSTEMS, "--system")
        check_folder("--output-dir", self.output_dir)
        check_apart("--output-dir", self.output_dir, {"--data": self.data, "--policy": self.policy})
        known, needed = len(read_training_questions(self.data)), self.rounds * self.questions
        if needed > known:
            raise UserError(
                f"--rounds {self.rounds} of --questions {self.questions} need {needed} training questions, and "
                f"{self.data / 'train.jsonl'} has {known} that a chunk answers; give fewer of either"
            )
        if not read_held_out(self.data):
            raise UserError(f"{self.data / 'eval.jsonl'} has no question to measure on; make it with data_prep.py")

    def round(self, number: int) -> Path:
        return self.output_dir / f"round_{number}"

    def policy_of(self, number: int) -> Path:
        """The policy after a round; that of round 0 is the start."""
        return self.round(number) / "policy" if number else self.policy

    def system_of(self, number: int) -> str:
        return self.system if number > 1 else FIRST_SEARCH

    def log(self, number: int, system: str) -> OutcomeLog:
        return OutcomeLog(self.round(number) / "played", f"{PLAYER}/{system}")

    def evaluation(
        self, folder: str, policies: Mapping[str, Path], systems: tuple[str, ...], **more: Any
    ) -> EvaluationOptions:
        """How these policies are played, in a folder of --output-dir."""
        return EvaluationOptions(
            self.data, tuple(f"{name}={path}" for name, path in policies.items()), systems=systems,
            output_dir=self.output_dir / folder, engine=self.engine, address=self.address, sampling=self.sampling,
            concurrency=self.concurrency, seed=self.seed, **more,
        )  # fmt: skip


def main(options: EvolveOptions) -> None:
    options.check()
    with filling_folder(options.output_dir):
        data = digests_of(options.data, manifest_at(options.address, options.data)[1])
        keep_options(options.output_dir, options, FREE, "another --output-dir", data=data)
        for number in range(1, options.rounds + 1):
            evolve(options, number)
        print("\nmeasuring on held-out questions", flush=True)
        evaluate = importlib.import_module(EVALUATE).main
        policies = {f"round_{number}": options.policy_of(number) for number in range(options.rounds + 1)}
        evaluate(options.evaluation("measured", policies, MEASURED, eval_questions=options.eval_questions))


def evolve(options: EvolveOptions, number: int) -> None:
    """A round: what is finished is not started again, and each script goes on where it was."""
    here, rounds, system = options.round(number), range(1, number + 1), options.system_of(number)
    logs = [options.log(earlier, options.system_of(earlier)) for earlier in rounds]
    if starts(here / "played" / "eval.json", f"round {number}, playing training questions"):
        importlib.import_module(EVALUATE).main(options.evaluation(
            f"{here.name}/played", {PLAYER: options.policy_of(number - 1)}, tuple(dict.fromkeys((FIRST, system))),
            split="train", eval_questions=options.questions, skip_questions=(number - 1) * options.questions,
            scorer=options.round(number - 1) / "scorer" if is_learned(system) else None,
        ))  # fmt: skip
    if starts(here / "scorer" / "scorer.json", f"round {number}, training the scorer"):
        train_scorer.main(train_scorer.Options(
            tuple(log.episodes for log in logs), options.data, options.policy, here / "scorer", seed=options.seed,
            address=options.address,
        ))  # fmt: skip
    if starts(here / "kept.jsonl", f"round {number}, choosing the episodes to learn from"):
        first = options.log(number, FIRST)
        select(logs[-1], first, options.data, options.policy, options.address, here / "kept.jsonl")
    if starts(adapter_path(here / "policy", 0), f"round {number}, training the policy"):
        # From the start, whatever the round, by all of its updates: the loss of what a policy played itself hardly
        # falls.
        importlib.import_module("sft_train").main(SFTOptions(
            options.data, options.policy, here / "policy", num_demonstrations=0, keep="last",
            demonstrations=tuple(options.round(earlier) / "kept.jsonl" for earlier in rounds), address=options.address,
            max_steps=options.max_steps, learning_rate=options.learning_rate,
            seed=options.seed,
        ))  # fmt: skip


def starts(made: Path, title: str) -> bool:
    """Whether a stage is still to be done: `made` is what it writes last."""
    if not made.exists():
        print(f"\n{title}", flush=True)
    return not made.exists()


TOP = (
    "data", "policy", "output-dir", "rounds", "questions", "system", "eval-questions", "engine", "urls",
    "temperature", "seed",
)  # fmt: skip


def select(search: OutcomeLog, first: OutcomeLog, data: Path, policy: Path, address: StoreAddress, out: Path) -> None:
    """Write what is kept of a search's episodes, beside the first samples that the system `single` played."""
    settings = SearchOptions().settle(policy)
    protocol = Protocol.of_policy(read_policy_manifest(policy), settings)
    functions = rewards_of(
        importlib.import_module(ROLLOUT).get_reward_functions, open_embedder(manifest_at(address, data)[0]),
        Searcher(lambda: open_address(address, data), settings),
    )  # fmt: skip
    vetting = Vetting(protocol, settings, read_held_out(data))
    outcomes, firsts, kept = search.results(), first.results(), []
    for question in read_train(data):
        if question.id in outcomes:
            answers = set(question.relevant_chunk_ids)
            fit = [e for e in outcomes[question.id].tried if answers.intersection(e.hits) and not vetting.malformed(e)]
            if found := best(fit, firsts[question.id].episode, question, functions):
                kept.append(demonstration(found, question, protocol))
    counted = f"{len(kept)} of {len(outcomes)} questions have an episode that is better than the policy's first"
    if not kept:
        raise UserError(f"{counted}; play more questions, or at a higher --temperature")
    write_episodes(out, kept)
    print(f"{out}: {counted}")


def best(
    candidates: Sequence[Episode], first: Episode, question: Question, functions: Mapping[str, RewardFunction]
) -> Episode | None:
    """The candidate with the highest reward, the first of equal ones; None if none beats the first sample."""
    episodes = [*candidates, first]
    *others, last = rewarded(functions, episodes, [question] * len(episodes))
    # A lead that rounding could have made is none: an answer may be embedded in two batches.
    better = [episode for episode in others if episode.reward >= last.reward + ROUNDING]
    return max(better, key=lambda episode: episode.reward, default=None)


def demonstration(episode: Episode, question: Question, protocol: Protocol) -> Episode:
    """The episode with its question's plain prompt.

    Example: plain prompt p, changed prompt p h: ids p h s t with turn (2, 4) become p s t with turn (1, 3).
    """
    prompt = tuple(protocol.prompt(question.question))
    if episode.ids[: len(prompt)] == prompt:
        return episode
    start = episode.turns[0].start
    shift = len(prompt) - start
    ids, mask = prompt + episode.ids[start:], (0,) * len(prompt) + episode.mask[start:]
    turns = tuple(Turn(turn.start + shift, turn.end + shift, turn.faults) for turn in episode.turns)
    transcript = protocol.tokenizer.decode(ids)
    return replace(episode, ids=ids, mask=mask, logprobs=(0.0,) * len(ids), turns=turns, transcript=transcript)


if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, begun=lambda options: options.output_dir / "config.json")
