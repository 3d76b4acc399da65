"""Ask a search agent questions about a document store, in a terminal.

    python chat.py --policy models/warm                          a policy folder or a merged model's folder
    python chat.py --policy runs/a --question "What is gout?"    one question to a run's newest adapter; for scripts

Shows each search and what it found, then the answer and the passages that contain its words. Uses the same loop as
training and evaluate.py. Reads --data (the store); writes nothing. If standard input is not a terminal, each of its
lines is a question.
"""

from __future__ import annotations

from forage.arguments import run_script
from forage.extras.chat.options import ChatOptions


def main(options: ChatOptions) -> None:
    options.check()

    from forage.extras.chat.session import talk  # after the check: this loads torch

    talk(options)


TOP = ("policy", "data", "question", "engine", "urls", "temperature", "seed")

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, resumes=False)
