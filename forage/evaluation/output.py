"""The output folder of an evaluation: all of its episodes are played in the same way, whoever plays them and when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.agent.options import AGENT_FILE, AgentSettings, difference, quoted, read_agent, write_agent
from forage.errors import UserError, flag
from forage.evaluation.options import FREE, EvaluationOptions
from forage.evaluation.policies import Policy, find_policy, settle_agent
from forage.files import make_folder
from forage.manifest import agree, file_digest, plain, read_manifest
from forage.policy.adapters import weights_digest
from forage.store.card import NO_EMBEDDER
from forage.store.embedder import Embedder
from forage.store.opening import card_at

MANIFEST = "evaluation.json"
WAY_OUT = "another --output-dir"


@dataclass(frozen=True)
class Begun:
    """What an evaluation's episodes have in common."""

    policies: list[Policy]
    agent: AgentSettings
    embedder: str
    """The rewards' embedder: the store's, or the one that was chosen when the folder was begun."""


def begin(options: EvaluationOptions) -> Begun:
    """Compare with what earlier calls recorded in the folder, refuse what differs, and record what is new.

    A policy plays with the adapter that it had when its first episode was played.
    """
    out, path = options.output_dir, options.output_dir / MANIFEST
    before = read_manifest(path, f"put it back, or give {WAY_OUT}") if path.exists() else {}
    adapters = before.get("adapters", {})
    policies = [find_policy(name, source, adapters.get(name, "")) for name, source in options.sources.items()]
    agent = settle_agent(options.search, policies)
    named = card_at(options.place, options.data)[0].options.embedder
    embedder = named if named != NO_EMBEDDER else before.get("embedder") or Embedder().name
    now = {
        "options": {name: value for name, value in plain(options).items() if name not in (*FREE, "place")},
        "store": options.place.store, "embedder": embedder,
        "adapters": adapters | {policy.name: policy.adapter.name for policy in policies if policy.adapter},
        **{f"policy {p.name}": weights_digest(p.adapter or Path(p.card.base)) for p in policies},
        **scorer_part(options),
    }  # fmt: skip
    make_folder(out)
    if (out / AGENT_FILE).exists() and (name := difference(was := read_agent(out), agent)):
        words = f"{flag(name)} {quoted(getattr(was, name))}, not {quoted(getattr(agent, name))}"
        raise UserError(f"{out} was begun with {words}; give that, or {WAY_OUT}")
    agree(path, before | now, WAY_OUT)
    write_agent(agent, out)
    return Begun(policies, agent, embedder)


def scorer_part(options: EvaluationOptions) -> dict[str, Any]:
    """By which scorer the learned systems choose, once one of them is played."""
    return {"scorer": file_digest(options.scorer / "scorer.json")} if options.scorer and options.learned else {}
