"""How far a vLLM server's log-probabilities may be from the trainer's, by the type that both compute in."""


def mismatch_bound(dtype):
    """The largest mean difference in nats; `python -m bench.mismatch` measures it.

    In fp32 it is about 1e-5. In bf16 the two round in different places: .033, with logits in fp32 on both sides.
    """
    return {"float32": 1e-3, "bfloat16": 0.05}[dtype]
