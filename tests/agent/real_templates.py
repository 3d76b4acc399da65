"""Chat templates of real families of models, over the tiny tokenizer."""

from functools import cache
from importlib.resources import files

from tests.tiny import make_tokenizer

# Templates as their makers write them, which come with TRL, and their control tokens: ChatML's, or the first of others
# begins a text.
CHATML, LLAMA, GEMMA = [], ["<|begin_of_text|>", "<|eot_id|>"], ["<bos>", "<start_of_turn>", "<end_of_turn>"]
PHI = ["<s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
COHERE = ["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"]
REAL = {
    "qwen2_5": CHATML, "qwen3": CHATML, "qwen3_instruct_2507": CHATML, "qwen3_5_nothink": CHATML,
    "qwen3_5_think": CHATML, "qwen3_6": CHATML, "lfm2": CHATML, "lfm2_2_5": CHATML,
    "llama3": LLAMA, "llama3_1": LLAMA, "llama3_2": LLAMA,
    "gemma": GEMMA, "gemma3": GEMMA, "gemma4": ["<bos>", "<|turn>", "<turn|>"],
    "phi3": PHI, "phi3_5": PHI, "cohere": COHERE, "cohere2": [*COHERE, "<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    "glm4moe": ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"],
}  # fmt: skip


@cache
def real(name, *tokens):
    """The tiny tokenizer, with a real template."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"])  # not special in any family that has them
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.bos_token = tokens[0] if tokens else tokenizer.bos_token
    tokenizer.chat_template = (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    return tokenizer
