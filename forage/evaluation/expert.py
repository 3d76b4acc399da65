"""Expert iteration: the best episodes of any strategy, evaluation or run, as a file for sft_train.py to imitate.

    python -m forage.evaluation.expert runs/eval/episodes/best_of_8.jsonl --data data \\
        --policy models/warm --out best.jsonl
    python sft_train.py --policy models/warm --num-demonstrations 0 --demonstrations best.jsonl \\
        --output-dir models/better

As in https://arxiv.org/abs/1705.08439 and STaR, https://arxiv.org/abs/2203.14465: a search makes better episodes than
the policy, and the policy learns to do without the search. It keeps:

- Well-formed episodes of **training** questions only (--data/train.jsonl): learning from held-out questions would spoil
  them. What is left out is counted by cause.
- For each question up to `--max-per-question` episodes with the highest reward, or score by a scorer (`--by`), of at
  least `--min-score`.
- **Prompts that a strategy changed** (critiques, revisions, templates) are replaced by the question's plain prompt, so
  the policy learns to say without the hint what it said with it. The log-probabilities belong to the other prompt, so
  they become 0, as the teacher's are. A revision may know things from its prompt that its own searches did not show;
  `--by support` with a `--min-score` leaves such episodes out.
- **Forced tokens** have mask 0 and are not learnt, but what the policy said after them is.
- Episodes with fused hits (SelfConsistency's `fuse`) are left out: they were rewarded for what they did not find.

Where it doesn't help: with a reward that the policy can earn without answering; and in many rounds, since each one
narrows what the policy does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from forage.agent.episode import Episode, Turn, read_episodes, write_episodes
from forage.agent.options import SearchOptions
from forage.agent.protocol import Protocol
from forage.arguments import POSITIONAL
from forage.cli import run_script
from forage.data.records import Question
from forage.data.splits import read_train
from forage.errors import UserError, check_at_least_one
from forage.evaluation.outcomes import is_fused
from forage.evaluation.scorers import Scorer, agreement, confidence, hit_agreement, support
from forage.metrics import token_f1
from forage.outputs import check_apart
from forage.policy.card import read_policy_card
from forage.policy.policy import load_tokenizer

By = Literal["reward", "token_f1", "agreement", "hit_agreement", "confidence", "support"]


@dataclass(frozen=True)
class Options:
    """Expert iteration."""

    files: Annotated[tuple[Path, ...], POSITIONAL]
    """Files of episodes."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy that will learn from the episodes; its tokenizer is needed."""
    out: Path = Path("best.jsonl")
    """File to write."""
    by: By = "reward"
    """Choose by the episodes' rewards, by token F1 with the reference (0 if the answer was not found), or by a scorer,
    which sees all episodes of a question together."""
    min_score: float = 0.5
    """Lowest reward or score to keep."""
    max_per_question: int = 1
    """Most episodes to keep per question."""
    search: SearchOptions = field(default_factory=SearchOptions)


def main(options: Options) -> None:
    check_at_least_one(options, "max_per_question")
    if not options.files:
        raise UserError("name one or more files of episodes")
    check_apart("--out", options.out, {str(path): path for path in options.files}, nested=True)
    settings = options.search.settle(options.policy)
    protocol = Protocol.playing(load_tokenizer(read_policy_card(options.policy)), settings)
    train = read_train(options.data)
    questions = {question.id: question for question in train}
    episodes = distinct([episode for path in options.files for episode in read_episodes(path)])
    if options.by == "reward" and not any(episode.rewards for episode in episodes):
        raise UserError("none of these episodes has a reward; choose by something else, such as --by token_f1")
    best = best_episodes(episodes, questions, protocol, options)
    left_out = Counter(cause for episode in episodes if (cause := unfit(episode, questions)))
    causes = ", ".join(f"{count} {cause}" for cause, count in left_out.most_common())
    print(f"kept {len(best)} of {len(episodes)} episodes" + (f"; left out: {causes}" if causes else ""))
    if not best:
        raise UserError(f"no episode reaches {options.by} {options.min_score}; lower --min-score, or give other files")
    write_episodes(options.out, best)
    print(f"learn from them: python sft_train.py --num-demonstrations 0 --demonstrations {options.out}")


def best_episodes(
    episodes: Sequence[Episode], questions: Mapping[str, Question], protocol: Protocol, options: Options
) -> list[Episode]:
    """Each question's best episodes as demonstrations, the best first; the first of equal ones."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.question_id in questions:
            groups.setdefault(episode.question_id, []).append(episode)
    best = []
    for name, group in groups.items():
        scored = zip(scores_by(options.by, protocol, questions[name], group), group, strict=True)
        fit = [(score, e) for score, e in scored if score >= options.min_score and not unfit(e, questions)]
        chosen = sorted(fit, key=lambda pair: -pair[0])[: options.max_per_question]
        for rank, (_, episode) in enumerate(chosen):
            best.append(replace(demonstration(episode, questions[name], protocol), id=f"{name}/{rank}"))
    return best


def scores_by(by: By, protocol: Protocol, question: Question, group: Sequence[Episode]) -> Sequence[float]:
    if by == "reward":
        return [episode.reward for episode in group]
    return SCORERS[by](protocol, question, group)


def found_f1(_: Protocol, question: Question, group: Sequence[Episode]) -> list[float]:
    """Token F1 with the reference; 0 if no relevant chunk was found."""
    relevant = set(question.relevant_chunk_ids)
    return [token_f1(e.answer, question.answer) if relevant & set(e.hits) else 0.0 for e in group]


SCORERS: dict[By, Scorer] = {
    "token_f1": found_f1, "agreement": agreement, "hit_agreement": hit_agreement, "confidence": confidence,
    "support": support,
}  # fmt: skip


def unfit(episode: Episode, questions: Mapping[str, Question]) -> str:
    """Why an episode is left out; empty if it is fit to learn from."""
    if episode.question_id not in questions:
        return "not of a training question"
    if is_fused(episode):
        return "with fused hits"
    return "" if episode.well_formed else "not well-formed"


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


def distinct(episodes: Sequence[Episode]) -> list[Episode]:
    """Each episode once, by question, tokens and searches (so a fused copy is another one), rewarded ones first."""
    once: dict[tuple[object, ...], Episode] = {}
    for episode in sorted(episodes, key=lambda episode: not episode.rewards):
        once.setdefault((episode.question_id, episode.ids, episode.searches), episode)
    return list(once.values())


if __name__ == "__main__":
    run_script(main, __doc__)
