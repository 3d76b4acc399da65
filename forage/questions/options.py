"""Options of own documents and the questions made from them. Imports nothing heavy, for --help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forage.errors import UserError, check_at_least_one


@dataclass(frozen=True)
class MakingOptions:
    """Your own documents, and the questions made from them."""

    documents: Path | None = None
    """Folder of your own .txt, .md, .html and .pdf files, in place of a data set; questions are made from them."""
    questions: str = ""
    """Your own questions about --documents, in place of made ones: a .jsonl, .jsonl.gz, .csv or .parquet file with
    columns question, answer and source (the file that answers), of which one of the last two may be missing."""
    make_questions: str = ""
    """Chat model that writes the questions, by its name at --make-questions-url. Without one, questions are made from
    headings and sentences."""
    make_questions_url: str = ""
    """Address of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; its key is read from OPENAI_API_KEY."""
    found_within: int = 10
    """Keep a question only if a search with it finds its passage among this many."""
    max_questions: int = 2000
    """Stop when this many questions are kept; until then each document's passages get their turn."""
    min_questions: int = 20
    """Stop with an error if fewer questions are kept."""
    second_hop: tuple[int, ...] = ()
    """Also write questions that one search can't answer, into second_hop_N beside the others: N words of another
    passage stand for the name of what is asked about, which must be found first. A folder for each number."""

    def check(self) -> None:
        """Fail before anything is read."""
        check_at_least_one(self, "found_within", "max_questions", "min_questions")
        if any(words < 1 for words in self.second_hop):
            raise UserError(f"--second-hop {' '.join(map(str, self.second_hop))}: give numbers of words, such as 6 10")
        if self.documents is None and (self.make_questions or self.make_questions_url):
            raise UserError("--make-questions makes questions for --documents; give that folder too")
        if self.questions and (self.documents is None or self.make_questions):
            raise UserError("--questions asks about the folder --documents, in place of made questions; give that "
                            "folder, and no --make-questions")  # fmt: skip
        if self.questions and not Path(self.questions).is_file():
            raise UserError(f"--questions {self.questions}: no such file")
        if bool(self.make_questions_url) != bool(self.make_questions):
            raise UserError("a model that writes questions needs its name and address: give both --make-questions and "
                            "--make-questions-url")  # fmt: skip
