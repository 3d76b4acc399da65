"""Rounds of self-evolution: search, keep the best, train, and search again with the better policy; each round measured.

    python -m forage.evolution.self_evolve --data data --policy models/warm --output-dir runs/evolution

Starts the other scripts one after the other, each in a process of its own. Round r, in round_r/ of --output-dir:

    played/      evaluate.py plays training questions of this round's own with the policy of round r - 1 (in round 1:
                 --policy), by the search --first-system, later --system, which may choose by the last round's scorer
    scorer/      the preference model is trained on the candidates of all rounds
    kept.jsonl   of each question the best episode by the rewards, if it is well-formed, found the answer, and beats the
                 policy's first sample (selection.py)
    policy/      sft_train.py imitates what all rounds kept
    measured/    evaluate.py measures that policy on held-out questions, as round_0/measured does the start

and evolution.json (described in report.py), table.md and evolution.png, written anew after each round. Re-run the same
command to resume: a stage that is finished is not started again, and each script goes on where it was. A larger
--rounds goes on from finished rounds.

Every training begins with --policy, not with the policy of the round before, and imitates the episodes of all rounds.
So what one round learnt badly is not handed on in the weights, only in the episodes that were chosen; more rounds do
not mean more updates of one policy; and a round's policy depends on its files alone. It costs the training on old
episodes again, which is short beside the search.

Following rStar-Math, https://arxiv.org/abs/2501.04519. Left out: the start is a policy that can search already (a warm
start), not one that a larger model's solutions taught; one best episode of a question, not several; a step is not
checked by code; questions that no search solved do not come again; the paper's preference model is a language model.
Reference answers of training questions are used to choose episodes, as the paper uses the right results.

Where it doesn't help: a policy whose samples hardly differ, since the search then finds nothing better; rewards that
can be earned without answering; and many rounds on few questions, each of which narrows what the policy does. With
learned_8 as --system the scorer decides nothing about what is kept, as rewards choose among the same eight samples; it
guides the search in learned_tree. The scorer knows the mistakes of the policy of the round before.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterable

from forage.agent.combination import weights_by_name
from forage.agent.episode import read_episodes
from forage.cli import run_script
from forage.data.splits import read_held_out, read_training_questions
from forage.errors import UserError
from forage.evolution.options import FREE, EvolveOptions
from forage.evolution.selection import open_rewards
from forage.evolution.stages import Place, Stage, imitation_stages, round_stages, start_stage
from forage.policy.adapters import newest_adapter
from forage.policy.card import read_policy_card
from forage.processes import run_module
from forage.runs.run_folder import keep_options
from forage.sole_writer import filling_folder
from forage.store.opening import card_at

SCRIPT = "evaluate"  # whose dictionary of systems users add to


def main(options: EvolveOptions) -> None:
    options.check(importlib.import_module(SCRIPT).SYSTEMS)
    check_inputs(options)
    with filling_folder(options.output_dir):
        keep_options(options.output_dir, options, FREE, "another --output-dir")
        evolve(options)


def check_inputs(options: EvolveOptions) -> None:
    """Refuse what a stage would refuse hours later, and questions that are held out as well."""
    read_policy_card(options.policy)
    newest_adapter(options.policy)
    settings = options.search.settle(options.policy)
    card_at(options.place, options.data)
    if options.weights:
        weights_by_name(open_rewards(options.place, options.data, settings), options.weights)
    known, needed = len(read_training_questions(options.data)), options.rounds * options.questions
    if needed > known:
        raise UserError(
            f"--rounds {options.rounds} of --questions {options.questions} need {needed} training questions, and "
            f"{options.data / 'train.jsonl'} has {known} that a chunk answers; give fewer of either"
        )
    if not read_held_out(options.data):
        raise UserError(f"{options.data / 'eval.jsonl'} has no question to measure on; make it with data_prep.py")


def evolve(options: EvolveOptions) -> None:
    """The rounds, a report after each."""
    from forage.evolution.report import report, reported  # after the checks: it loads what draws

    perform([start_stage(options)], options)
    for number in range(1, options.rounds + 1):
        missing = number == options.rounds or number > reported(options.output_dir)
        if perform(round_stages(options, number), options) or missing:
            report(options, number)
    if options.imitation and perform(imitation_stages(options, number_kept(options)), options):
        report(options, options.rounds)


def perform(stages: Iterable[Stage], options: EvolveOptions) -> bool:
    """Run the stages that are not finished, and say whether there was one; ends with the status of one that fails."""
    unfinished = [stage for stage in stages if not stage.finished]
    for stage in unfinished:
        print(f"\n{stage.title}\n$ python -m {shlex.join(stage.command)}", flush=True)
        if status := run_module(stage.command, options.engine.api_key):
            print(
                f"error: {stage.title}: {stage.command[0]} ended with status {status}, see above; re-run the same "
                "command to resume, or give another --output-dir for other options", file=sys.stderr,
            )  # fmt: skip
            sys.exit(status)
    return bool(unfinished)


def number_kept(options: EvolveOptions) -> int:
    """Episodes that the last round's policy was trained on."""
    numbers = range(1, options.rounds + 1)
    return sum(1 for number in numbers for _ in read_episodes(Place.of(options.output_dir, number).kept))


TOP = (
    "data", "policy", "output-dir", "rounds", "questions", "first-system", "system", "eval-questions", "imitation",
    "engine", "urls", "temperature", "seed",
)  # fmt: skip

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP)
