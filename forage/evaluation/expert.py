"""Expert iteration: the best episodes of any strategy, evaluation or run, as a file for sft_train.py to learn from.

    python -m forage.evaluation.expert runs/eval/episodes/best_of_8.jsonl --data data \\
        --policy models/warm --out best.jsonl
    python sft_train.py --policy models/warm --demonstrations 0 --episodes best.jsonl --output-dir models/better

As in https://arxiv.org/abs/1705.08439 and STaR, https://arxiv.org/abs/2203.14465: a search makes better episodes than
the policy, and the policy learns to do without the search. What is kept:

- Well-formed episodes of **training** questions only, those of --data/train.jsonl: what was played on held-out
  questions can't be learnt from without spoiling them. What is left out is counted by cause.
- Those of the highest reward, or score of a scorer, which must be at least `--least`; at most `--most` of a question.
- **Prompts that a strategy altered** (critiques, revisions, templates) are replaced by the question's plain prompt: the
  policy learns to say without the hint what it said with it. Their log-probabilities, which were taken after another
  prompt, become 0, as the teacher's are. A revision may know from its prompt what its own searches did not show; `--by
  support` with a `--least` keeps such out.
- **Forced tokens** have mask 0 and are not learnt; what the policy said after them is.
- An episode whose hits were fused with others' (SelfConsistency's `fuse`) was rewarded for what it did not find, and is
  left out.

Where it does not help: by a reward that the policy has learnt to please without answering, and by repeating it: each
round narrows what the policy does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from forage.agent.episode import Episode, Turn, read_episodes, to_json
from forage.agent.protocol import Protocol
from forage.cli import run_script
from forage.data.records import Question, read_questions
from forage.errors import UserError, check_at_least_one
from forage.evaluation.outcomes import FUSED
from forage.evaluation.scorers import Scorer, agreement, confidence, hit_agreement, support
from forage.files import replacing
from forage.metrics import token_f1
from forage.policy.card import read_policy_card
from forage.policy.policy import load_tokenizer

By = Literal["reward", "token_f1", "agreement", "hit_agreement", "confidence", "support"]


@dataclass(frozen=True)
class Options:
    """Which episodes are learnt from."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files of episodes."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy that is to learn: its tokenizer is needed."""
    out: Path = Path("best.jsonl")
    """Where they are written to."""
    by: By = "reward"
    """What is best: the episodes' rewards, token F1 with the reference where the answer was found, or a scorer that
    sees all episodes of a question beside each other."""
    least: float = 0.5
    """Least reward or score."""
    most: int = 1
    """Episodes of a question at most."""


def main(options: Options) -> None:
    check_at_least_one(options, "most")
    if not options.files:
        raise UserError("name one or several files of episodes")
    protocol = Protocol(load_tokenizer(read_policy_card(options.policy)))
    questions = {question.id: question for question in read_questions(options.data / "train.jsonl")}
    episodes = distinct([episode for path in options.files for episode in read_episodes(path)])
    if options.by == "reward" and not any(episode.rewards for episode in episodes):
        raise UserError("none of these episodes was rewarded; choose by something else, as --by token_f1")
    left_out = Counter(why for episode in episodes if (why := unfit(episode, questions)))
    best = best_episodes(episodes, questions, protocol, options.by, options.least, options.most)
    told = ", ".join(f"{count} {why}" for why, count in left_out.most_common())
    print(f"{len(best)} of {len(episodes)} episodes are kept" + (f"; left out: {told}" if told else ""))
    if not best:
        raise UserError(f"no episode reaches {options.by} {options.least}; lower --least, or give other files")
    with replacing(options.out) as file:
        file.writelines(to_json(episode) + "\n" for episode in best)
    print(f"learn from them: python sft_train.py --demonstrations 0 --episodes {options.out}")


def best_episodes(
    episodes: Sequence[Episode], questions: Mapping[str, Question], protocol: Protocol, by: By, least: float, most: int
) -> list[Episode]:
    """At most so many of each question, the best first, as demonstrations; the first of equal ones."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.question_id in questions:
            groups.setdefault(episode.question_id, []).append(episode)
    best = []
    for name, group in groups.items():
        scored = zip(scores_by(by, protocol, questions[name], group), group, strict=True)
        fit = [(score, e) for score, e in scored if score >= least and not unfit(e, questions)]
        for place, (_, episode) in enumerate(sorted(fit, key=lambda pair: -pair[0])[:most]):
            best.append(replace(demonstration(episode, questions[name], protocol), id=f"{name}/{place}"))
    return best


def scores_by(by: By, protocol: Protocol, question: Question, group: Sequence[Episode]) -> Sequence[float]:
    if by == "reward":
        return [episode.reward for episode in group]
    return SCORERS[by](protocol, question, group)


def found_f1(_: Protocol, question: Question, group: Sequence[Episode]) -> list[float]:
    """Token F1 with the reference; 0 where no chunk that answers was found, as in sft_train.py's rejection sampling."""
    relevant = set(question.relevant_chunk_ids)
    return [token_f1(e.answer, question.answer) if relevant & set(e.hits) else 0.0 for e in group]


SCORERS: dict[By, Scorer] = {
    "token_f1": found_f1, "agreement": agreement, "hit_agreement": hit_agreement, "confidence": confidence,
    "support": support,
}  # fmt: skip


def unfit(episode: Episode, questions: Mapping[str, Question]) -> str:
    """Why an episode can't be learnt from; empty if it can."""
    if episode.question_id not in questions:
        return "of no training question"
    if any(search.turn == FUSED for search in episode.searches):
        return "with hits of others"
    return "" if episode.well_formed else "not well-formed"


def demonstration(episode: Episode, question: Question, protocol: Protocol) -> Episode:
    """The episode behind its question's plain prompt.

    Example: prompt p, altered prompt p h, ids p h s t with turn (2, 4) become p s t with turn (1, 3).
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
    """Each once, by its question and its tokens; the fused copy of an episode is another one. Rewarded ones first."""
    once: dict[tuple[object, ...], Episode] = {}
    for episode in sorted(episodes, key=lambda episode: not episode.rewards):
        once.setdefault((episode.question_id, episode.ids, episode.searches), episode)
    return list(once.values())


if __name__ == "__main__":
    run_script(main, description=__doc__)
