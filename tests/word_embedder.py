"""An embedder without a model: a text's vector counts its words, each in the place that a digest of it says."""

import re
import zlib

import numpy as np


class WordEmbedder:
    """Texts that share words are alike; `encoded` is how many texts were embedded."""

    max_tokens = 256

    def __init__(self, name="words", dimension=16, turn=0):
        self.name, self.dimension, self.turn, self.encoded = name, dimension, turn, 0

    def encode_passages(self, texts):
        self.encoded += len(texts)
        vectors_ND = np.zeros((len(texts), self.dimension), np.float32)
        for vector_D, text in zip(vectors_ND, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                vector_D[(zlib.crc32(word.encode()) + self.turn) % self.dimension] += 1
        lengths_N = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
        return vectors_ND / np.where(lengths_N > 0, lengths_N, 1)

    encode_queries = encode_passages

    def count_tokens(self, texts):
        return [len(text.split()) for text in texts]

    def probe(self):
        return self.encode_queries(["The heart pumps blood through the body."])[0]


WordEmbedder.__name__ = "Embedder"  # a reward's fingerprint leaves out which embedder it has, by this name
