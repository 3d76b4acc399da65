"""Vetting: which episodes of a file a policy may learn from.

A file is refused if one of its episodes answers a held-out question, or was not played as this policy plays: with
another tokenizer, chat template, task or agent settings. Malformed episodes are left out, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from forage.agent.episode import Episode, read_episodes
from forage.agent.options import AGENT_FILE, AgentSettings, difference, read_agent
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.data.relevance import question_key
from forage.errors import UserError, flag


@dataclass(frozen=True)
class Vetting:
    """The policy that is to learn, and the questions it must not have seen."""

    protocol: Protocol
    settings: AgentSettings
    held_out: Sequence[Question]

    def read(self, path: Path) -> list[Episode]:
        """The episodes of a file that are fit to learn from; prints how many are not, and why."""
        episodes = list(read_episodes(path))
        self.check(path, episodes)
        judged = [(episode, self.malformed(episode)) for episode in episodes]
        causes = Counter(cause for _, cause in judged if cause)
        counts = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
        if causes.total() == len(episodes):
            raise UserError(f"{path}: all of its episodes are malformed ({counts}); give another file")
        if causes:
            print(f"{path}: left out {causes.total()} malformed episodes ({counts})")
        return [episode for episode, cause in judged if not cause]

    def check(self, path: Path, episodes: Sequence[Episode]) -> None:
        """Refuse a file with held-out questions, or with episodes that were played in another way."""
        if not episodes:
            raise UserError(f"{path} has no episodes")
        for episode in episodes:
            if found := self.foreign(episode):
                raise UserError(f"{path}: episode {episode.id} {found}")
        # By a question's id, or in the same words, as in a file that was made from another data set.
        held = [e for e in episodes if {e.question_id, asked_in(e, self.protocol)} & self._held_out]
        if held:
            raise UserError(
                f"{path}: {len(held)} of its {len(episodes)} episodes answer questions of eval.jsonl, such as "
                f"{held[0].question_id}; learning from them would spoil every evaluation, so delete those lines"
            )
        folder = next((folder for folder in list(path.resolve().parents)[:4] if (folder / AGENT_FILE).is_file()), None)
        theirs = read_agent(folder) if folder else self.settings
        if differs := difference(theirs, self.settings):
            option, was, now = differs
            raise UserError(
                f"{path}: its episodes were played with {option} {was}, not {now}; give that, or play them again"
            )

    def foreign(self, episode: Episode) -> str:
        """What shows that this policy's protocol and settings did not make the episode; empty if nothing does."""
        tokenizer, settings = self.protocol.tokenizer, self.settings
        if not all(0 <= token < len(tokenizer) for token in episode.ids):
            return "has token ids that this policy's tokenizer lacks; play it again with this policy"
        if episode.transcript and tokenizer.decode(episode.ids) != episode.transcript:
            return "says something else in this policy's tokens; it is of another tokenizer, so play it again"
        if asked_in(episode, self.protocol) is None:
            return "does not begin with this policy's prompt; it has another chat template or task, so play it again"
        inside = {place for turn in episode.turns for place in range(turn.start, turn.end)}
        if not inside >= {place for place, one in enumerate(episode.mask) if one}:
            return "marks tokens outside its turns as the policy's own; delete that line"
        seen = {
            "k": max((len(search.hits) for search in episode.searches if search.turn >= 0), default=0),
            "max_turns": len(episode.turns),
            "max_tokens": len(episode.ids),
        }
        for name, value in seen.items():
            if value > getattr(settings, name):
                return f"needs {flag(name)} {value}, not {getattr(settings, name)}; give that, or play it again"
        return ""

    def malformed(self, episode: Episode) -> str:
        """Why an episode is left out; empty if it is well-formed."""
        if episode.stop != ("search" if self.settings.search_only else "answer"):
            return f"ended by {episode.stop}"
        if episode.faults:
            return f"with {episode.faults[0]}"
        if any(self.protocol.forges(episode.ids[turn.start : turn.end]) for turn in episode.turns):
            return "with control_token"
        return "" if episode.searches else "without a search"

    @cached_property
    def _held_out(self) -> set[str]:
        """The ids of the held-out questions, and their keys as a prompt shows them."""
        keys = {question_key(self.protocol.harmless(question.question)) for question in self.held_out}
        return ({question.id for question in self.held_out} | keys) - {""}


def asked_in(episode: Episode, protocol: Protocol) -> str | None:
    """The question in the episode's prompt, as question_key; None if the prompt is not this protocol's."""
    start = episode.turns[0].start if episode.turns else len(episode.ids)
    text = protocol.question_in(episode.ids[:start])
    return None if text is None else question_key(text)
