"""Ask a search agent questions about a document store, in a terminal or in a browser.

    python chat.py --policy models/warm                          a policy folder or a merged model's folder
    python chat.py --policy runs/a --question "What is gout?"    one question to a run's newest adapter; for scripts
    python chat.py --policy runs/a --web 8080                    in a browser, at http://127.0.0.1:8080

Shows each search and what it found, then the answer and the passages that contain its words. Uses the same loop as
training and evaluate.py. Reads --data (the store); writes nothing. If standard input is not a terminal, each of its
lines is a question.
"""

from __future__ import annotations

from forage.arguments import run_script
from forage.extras.chat.options import ChatOptions


def main(options: ChatOptions) -> None:
    options.check()

    if options.web is None:  # after the check: what this imports loads torch
        from forage.extras.chat.session import talk

        talk(options)
    else:
        from forage.extras.chat.web import serve

        serve(options)


TOP = ("policy", "data", "question", "web", "engine", "urls", "temperature", "seed")

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, resumes=False)
