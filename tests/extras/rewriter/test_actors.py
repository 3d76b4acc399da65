"""What the policy samples and how it is scored, what is trained, and that plain transformers loads it."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from forage.extras.rewriter.actors import (
    choose_by,
    left_padded,
    load_policy,
    make_actors,
    model_inputs,
    save_lm,
    text_of,
)
from forage.extras.rewriter.options import ActorOptions, Options, SamplingOptions
from forage.extras.rewriter.ppo import logits_and_values, logprobs_of
from tests.tiny_rewriter import make_tiny, tiny_actors, tiny_gpt2, tiny_lm, tiny_rows


def test_model_inputs_by_hand():
    seen = model_inputs(torch.tensor([[9, 5, 6], [9, 9, 7]]), 9)
    assert seen["input_ids"].tolist() == [[0, 5, 6], [0, 0, 7]]
    assert seen["attention_mask"].tolist() == [[0, 1, 1], [0, 0, 1]]
    assert seen["position_ids"].tolist() == [[0, 0, 1], [0, 0, 0]]


def test_a_number_chooses_a_token_by_hand():
    scores = torch.tensor([[0.2, 0.5, 0.3]]).log().repeat(5, 1)
    draws = torch.tensor([[0.9, 0.0], [0.9, 0.19], [0.9, 0.21], [0.9, 0.69], [0.9, 0.71]], dtype=torch.float64)
    second = choose_by(draws, width=4)(torch.zeros(5, 5, dtype=torch.long), scores)
    assert second.argmax(1).tolist() == [0, 0, 1, 1, 2]
    assert second.isfinite().sum(1).tolist() == [1] * 5
    cut = torch.tensor([[-torch.inf, 0.0, -torch.inf]])  # what top-p leaves is all that is chosen
    for number in (0.0, 0.5, 1 - 1e-9):
        assert choose_by(torch.tensor([[number]], dtype=torch.float64), 4)(torch.zeros(1, 4).long(), cut).argmax(
            1
        ).tolist() == [1]


def test_top_p_bounds_what_is_sampled_and_not_how_it_is_scored():
    actors, _ = tiny_actors(sampling=SamplingOptions(max_new_tokens=1, top_p=0.9))
    policy = actors.policy
    prompts = left_padded([tiny_rows(1)[0].prompt] * 64, policy.pad_id)
    logits = policy.response_logits(torch.cat((prompts[:1], torch.zeros(1, 1, dtype=torch.long)), 1), 1)[0][0, 0]
    ordered = logits.softmax(-1).sort(descending=True)
    nucleus = set(ordered.indices[: int((ordered.values.cumsum(0) < 0.9).sum()) + 1].tolist())
    torch.manual_seed(0)
    output = policy.generate(**model_inputs(prompts, policy.pad_id))
    drawn = output.sequences[:, -1]
    assert {int(token) for token in drawn} <= nucleus
    assert len(set(drawn.tolist())) > 1
    scored = logprobs_of(torch.stack(output.scores, 1), drawn[:, None])[:, 0]
    torch.testing.assert_close(scored, logits.log_softmax(-1)[drawn], rtol=1e-4, atol=1e-4)


def test_a_response_ends_at_eos_and_its_row_is_filled_up():
    actors, tokenizer = tiny_actors()
    assert text_of(tokenizer, [*tokenizer("sore  toe")["input_ids"], 2, 2, 77], 2) == "sore toe"
    assert text_of(tokenizer, [2], 2) == ""
    lm, prompts = actors.policy.lm, [(5, 6, 7), (50, 60)]
    seen = lm.model(input_ids=torch.tensor([prompts[0]])).last_hidden_state[0, -1]
    lm.lm_head.weight.data[2] = 1000 * seen  # so that eos is the likeliest after the first prompt
    responses = actors.policy.sample(left_padded(prompts, actors.policy.pad_id), greedy=True)
    assert responses[0].tolist() == [2] * responses.shape[1]
    assert responses[1, 0] != 2


SEQUENCES = torch.tensor([[5, 6, 7, 8, 9]])
KINDS = {"llama": tiny_lm, "gpt2": tiny_gpt2}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    """folder/model and folder/data; gpt2 has no chat template."""
    made = tmp_path_factory.mktemp(request.param)
    make_tiny(made, lm=KINDS[request.param], template=request.param != "gpt2")
    return made


def test_the_saved_model_is_the_one_that_was_trained(folder, tmp_path):
    source, options = str(folder / "model"), Options(actor=ActorOptions(dtype="float32"))
    tokenizer = AutoTokenizer.from_pretrained(source)
    policy = load_policy(source, tokenizer, options)
    actors = make_actors(policy, options.actor, seed=0)
    plain = policy.response_logits(SEQUENCES, 3)[0]
    torch.manual_seed(0)
    adapted = set()
    for name, weight in policy.lm.named_parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
            adapted.add(name.split(".lora_")[0])
    assert len(adapted) == (2 * 4 if "gpt2" in str(folder) else 2 * 7)  # every linear layer of both
    wanted, values = logits_and_values(actors, SEQUENCES, 3)
    assert not torch.allclose(wanted, plain, atol=0.1)
    assert values.tolist() == [[0, 0, 0]]
    torch.testing.assert_close(actors.reference.response_logits(SEQUENCES, 3), plain, rtol=0, atol=0)
    save_lm(policy, source, tokenizer, tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    got = saved(SEQUENCES).logits[:, 1:4] / policy.sampling.temperature
    torch.testing.assert_close(got, wanted.detach(), rtol=1e-3, atol=1e-3)


def test_padding_changes_no_log_probability():
    actors, _ = tiny_actors()
    policy = actors.policy
    prompts = [row.prompt for row in tiny_rows(3)]
    padded = torch.cat((left_padded(prompts, policy.pad_id), torch.tensor([[7, 8, 9]] * 3)), 1)
    together = policy.response_logits(padded, 3)[0]
    for row, prompt in enumerate(prompts):
        alone = policy.lm(input_ids=torch.tensor([[*prompt, 7, 8, 9]])).logits[0, -4:-1] / 0.7
        torch.testing.assert_close(together[row], alone, rtol=1e-4, atol=1e-4)
