"""Options of own documents and the questions made from them. Imports nothing heavy, for --help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forage.errors import UserError, check_at_least_one


@dataclass(frozen=True)
class MakingOptions:
    """Your own documents and questions."""

    documents: Path | None = None
    """Folder of your own .txt, .md, .html, .docx and .pdf files, instead of a data set. Questions are made from
    them, unless you give --questions."""
    questions: str = ""
    """Your own questions about --documents, instead of made ones: a .jsonl, .jsonl.gz, .csv or .parquet file with
    columns question, answer and source (the file with the answer). Either answer or source may be missing."""
    make_questions: str = ""
    """Chat model that writes the questions, and with --second-hop the descriptions, by its name at
    --make-questions-url. Empty: make questions from headings and sentences, descriptions from single words."""
    make_questions_url: str = ""
    """OpenAI-compatible server, such as http://127.0.0.1:8000/v1; its key is read from OPENAI_API_KEY."""
    found_within: int = 10
    """Keep a made question only if searching for it finds its passage among the first N results."""
    max_questions: int = 2000
    """Stop once this many questions are kept, taking the documents in turn."""
    min_questions: int = 20
    """Fail if fewer questions are kept."""
    second_hop: tuple[int, ...] = ()
    """Also write questions that need two documents, to a folder second_hop_N for each N given: N words from around a
    document's name in another document's passage stand in for the name, which has to be read there."""

    def check(self) -> None:
        """Fail before anything is read."""
        check_at_least_one(self, "found_within", "max_questions", "min_questions")
        if any(words < 1 for words in self.second_hop):
            raise UserError(f"--second-hop {' '.join(map(str, self.second_hop))}: give numbers of words, such as 6 10")
        if self.make_questions and len(self.second_hop) > 1:
            raise UserError(
                "--make-questions describes names in no set number of words; give one number to --second-hop"
            )
        if self.documents is None and not self.second_hop and (self.make_questions or self.make_questions_url):
            raise UserError("--make-questions makes questions for --documents; give that folder too")
        if self.questions and (self.documents is None or (self.make_questions and not self.second_hop)):
            raise UserError("--questions asks about the folder --documents, in place of made questions; give that "
                            "folder, and no --make-questions")  # fmt: skip
        if self.questions and not Path(self.questions).is_file():
            raise UserError(f"--questions {self.questions}: no such file")
        if bool(self.make_questions_url) != bool(self.make_questions):
            raise UserError("a model that writes questions needs its name and address: give both --make-questions and "
                            "--make-questions-url")  # fmt: skip
