"""LocalEngine: its tokens and log-probabilities are the plain model's, whatever else is in the batch."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from forage.engines import local
from forage.engines.base import Request, Sampling
from forage.engines.local import LocalEngine, Spoken, first_above, inverse_cdf
from tests.factories import tiny_model
from tests.refusals import refused
from tests.sampling import generate, logprobs_of, requests

GREEDY = Sampling(temperature=0)


def check(request, sample, temperature=1.0):
    """Its log-probabilities are the plain model's."""
    expected = logprobs_of(tiny_model(), request, sample, temperature)
    torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=2e-5, rtol=0)


def watched(engine):
    """The shapes of the passes to come."""
    seen = []
    engine.model.model.embed_tokens.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape)))
    return seen


def test_an_adapter_on_a_weight_that_is_input_and_output_is_refused(tmp_path):
    with_adapter = get_peft_model(tiny_model(tie_word_embeddings=True), LoraConfig(r=2, target_modules=["lm_head"]))
    with_adapter.save_pretrained(tmp_path, save_embedding_layers=False)
    engine = LocalEngine(tiny_model(tie_word_embeddings=True), 2)
    with refused("which the base uses as both input and output"):
        asyncio.run(engine.load_adapter("run-v000001", tmp_path))


@pytest.mark.parametrize("slots", [1, 3, 16])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_plain_models(slots, temperature):
    engine = LocalEngine(tiny_model(), slots)
    asked = requests(8, sampling=Sampling(temperature=temperature))
    for request, sample in zip(asked, generate(engine, *asked), strict=True):
        assert len(sample.ids) == 12 or sample.ids[-1] == 60
        check(request, sample, temperature)


def test_a_request_draws_the_same_tokens_alone_and_in_company():
    asked = requests(6)
    together = generate(LocalEngine(tiny_model(), 4), *asked)
    for request, sample in zip(asked, together, strict=True):
        [alone] = generate(LocalEngine(tiny_model(), 1), request)
        assert alone.ids == sample.ids


def test_tokens_are_drawn_as_often_as_they_are_likely():
    model = tiny_model()
    asked = [Request((5, 6, 7), 1, (), seed) for seed in range(1500)]
    drawn = [sample.ids[0] for sample in generate(LocalEngine(model, 64), *asked)]
    with torch.no_grad():
        probabilities = tiny_model()(torch.tensor([[5, 6, 7]])).logits[0, -1].softmax(-1).numpy()
    expected = probabilities * len(drawn)
    statistic = ((np.bincount(drawn, minlength=61) - expected) ** 2 / expected).sum()
    assert statistic < 100  # chi-squared with 60 degrees of freedom passes 99.6 once in a thousand


def test_what_is_guessed_by_hand():
    spoken = Spoken((5, 6, 7, 8, 9, 5, 6))
    assert spoken.guess(3) == []  # 9 5 6 was not there before
    spoken.add(7)
    assert spoken.guess(3) == [8, 9, 5]
    assert spoken.guess(9) == [8, 9, 5, 6, 7]
    assert spoken.guess(0) == []
    for token in (1, 5, 6, 7):
        spoken.add(token)
    assert spoken.guess(2) == [1, 5]  # what followed last


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("wrong", [1, 2, 3, 5, 99])
def test_guesses_change_no_sample(monkeypatch, wrong, temperature):
    """Guesses that are right but for every so manieth place: the same tokens in fewer passes, up to a stop or the last
    token allowed, which come in the middle of guesses too."""
    often = tuple(range(50, 59))
    asked = [replace(each, stop_ids=often) for each in requests(8, sampling=Sampling(temperature=temperature))]
    monkeypatch.setattr(local, "GUESSES", 0)
    passes, plain = passes_of(asked)
    texts = [(*request.ids, *sample.ids) for request, sample in zip(asked, plain, strict=True)]
    assert {sample.finish for sample in plain} == {"stop", "length"}

    def guess(spoken, most):
        [text, *_] = [text for text in texts if text[: len(spoken.ids)] == tuple(spoken.ids)]
        places = range(len(spoken.ids), min(len(text), len(spoken.ids) + most))
        return [59 if place % wrong == 0 else text[place] for place in places]

    monkeypatch.setattr(local, "GUESSES", 4)
    monkeypatch.setattr(Spoken, "guess", guess)
    fewer, guessed = passes_of(asked)
    assert [(sample.ids, sample.finish) for sample in guessed] == [(sample.ids, sample.finish) for sample in plain]
    assert fewer < passes if wrong > 1 else fewer == passes
    for request, sample in zip(asked, guessed, strict=True):
        check(request, sample, temperature or 1.0)


def passes_of(asked):
    """(forward passes, samples)."""
    engine = LocalEngine(tiny_model(), 3)
    passes = watched(engine)
    samples = generate(engine, *asked)
    return len(passes), samples


def test_a_second_turn_computes_its_new_tokens_only():
    engine = LocalEngine(tiny_model(), 2)
    seen = watched(engine)
    first = Request((1, 2, 3, 4), 3, (), 1, episode="e")
    [sample] = generate(engine, first)
    assert seen == [(1, 4), (1, 1), (1, 1)]
    seen.clear()
    second = Request((*first.ids, *sample.ids, 9, 8), 1, (), 2, episode="e")
    [again] = generate(engine, second)
    assert seen == [(1, 3)]  # the last sampled token, which was never computed, and two new ones
    check(second, again)


def test_those_that_start_together_are_computed_in_one_row():
    """Two samples each of three questions after one beginning: a pass for the first prompt, and one for the others.

    The first pass has all 7 tokens of the first prompt. Then 5 8 9 13 lacks three, since 5 is there, and 10 11 12 all
    its three. The second sample of each prompt waits for the first, and then lacks only the last token, which is left
    to the step: it has 6 tokens.
    """
    beginning = (1, 2, 3, 4)
    asked = [
        Request((*beginning, *question), 3, (), seed, episode=str((question, seed)))
        for question in ((5, 6, 7), (5, 8, 9, 13), (10, 11, 12))
        for seed in range(2)
    ]
    engine = LocalEngine(tiny_model(), 6)
    seen = watched(engine)
    samples = generate(engine, *asked)
    # After the first step, the first samples of each prompt have two tokens and the second ones have one.
    assert seen == [(1, 7), (1, 3 + 3), (1, 6), (1, 6), (1, 3)]
    for request, sample in zip(asked, samples, strict=True):
        check(request, sample)


def test_what_waits_is_untouched_by_what_is_decoded_beside_it():
    """A long episode waits for its search while a shorter one in a later slot is sampled."""
    engine = LocalEngine(tiny_model(), 3)
    long = Request(tuple(range(1, 30)), 3, (), 1, episode="long")
    short = Request((40, 41, 42), 6, (), 2, episode="short")

    async def run():
        first, _ = await asyncio.gather(engine.generate(long), engine.generate(short))
        await engine.generate(Request((*short.ids, 43, 44), 8, (), 3, episode="short"))
        second = Request((*long.ids, *first.ids, 9), 6, (), 4, episode="long")
        return second, await engine.generate(second)

    second, sample = asyncio.run(run())
    assert engine.slots[0].ids[:30] == list(second.ids[:30])  # it was in the first slot all along
    check(second, sample)


def test_what_is_left_moves_into_the_first_slots_with_its_tokens():
    """So a step computes no rows of finished samples, and a later turn finds its tokens in the new place."""
    engine = LocalEngine(tiny_model(), 5)
    seen = watched(engine)
    asked = [
        Request((number + 1, 2, 3), 8 if number > 2 else 2, (), number, episode="kept" if number == 4 else "")
        for number in range(5)
    ]
    samples = generate(engine, *asked)
    assert seen == [(1, 15), (1, 5)] + [(1, 2)] * 6
    seen.clear()
    second = Request((*asked[4].ids, *samples[4].ids, 9), 3, (), 9, episode="kept")
    [again] = generate(engine, second)
    assert seen == [(1, 2), (1, 1), (1, 1)]  # nothing is recomputed, and it is the only row
    for request, sample in (*zip(asked, samples, strict=True), (second, again)):
        check(request, sample)


def test_more_episodes_than_slots_and_turns_that_come_back_late():
    """Episodes that wait for a search lose their slots; their next turn is recomputed, correctly."""
    engine = LocalEngine(tiny_model(), 2)

    async def episode(number):
        ids = (1, 2, 3 + number)
        for turn in range(3):
            request = Request((*ids, 10 + turn), 4, (), number * 10 + turn, episode=str(number))
            sample = await engine.generate(request)
            check(request, sample)
            ids = (*request.ids, *sample.ids)
            await asyncio.sleep(0.001 * (number % 3))
        engine.release(str(number))

    async def run():
        await asyncio.gather(*(episode(number) for number in range(7)))

    asyncio.run(run())


def test_what_nobody_waits_for_is_not_sampled():
    """One that was begun and one that waited for its slot are cancelled: the third has the slot at once, whole."""
    engine = LocalEngine(tiny_model(), 1)
    seen, told, last = watched(engine), [], Request((5, 6, 7), 4, (), 3)

    async def run():
        begun = asyncio.create_task(engine.generate(Request((1, 2, 3), 500, (), 1, on_token=told.append)))
        waits = asyncio.create_task(engine.generate(Request((1, 2, 4), 500, (), 2)))
        while len(told) < 2:
            await asyncio.sleep(0)
        begun.cancel()
        waits.cancel()
        return await engine.generate(last)

    check(last, asyncio.run(run()))
    assert len(told) <= 3
    assert len(seen) < 12


@pytest.mark.parametrize("taken", [62, 63, 64, 127])
def test_keys_that_come_in_steps_of_64_are_masked_up_to_the_next(taken):
    """Whatever the slot held there before."""
    draw = np.random.default_rng(1)
    longer = Request(tuple(draw.integers(1, 61, 200).tolist()), 2, (), 1)
    request = Request(tuple(draw.integers(1, 61, taken).tolist()), 6, (), 3)
    engine = LocalEngine(tiny_model(), 1)
    generate(engine, longer)
    [sample] = generate(engine, request)  # in the same slot, where the longer one's keys still are
    check(request, sample)


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_with_an_adapter_it_samples_as_peft_does_and_without_it_as_before(tmp_path, settings):
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, **settings)
    get_peft_model(tiny_model(), config).save_pretrained(tmp_path / "v000001")
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    engine = LocalEngine(model, 2)
    request = Request((1, 2, 3, 4), 8, (), 3)
    [base] = generate(engine, request)
    asyncio.run(engine.load_adapter("run-v000001", tmp_path / "v000001"))
    assert engine.adapter == "run-v000001"
    [adapted] = generate(engine, request)
    policy = PeftModel.from_pretrained(tiny_model(), tmp_path / "v000001")
    expected = logprobs_of(policy, request, adapted)
    torch.testing.assert_close(torch.tensor(adapted.logprobs), expected, atol=2e-5, rtol=0)
    assert (logprobs_of(tiny_model(), request, adapted) - expected).abs().max() > 1e-3
    asyncio.run(engine.load_adapter("run-v000002", tmp_path / "v000001"))  # replaces the first
    assert generate(engine, request) == [adapted]
    engine.unload_adapter()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert generate(engine, request) == [base]


def test_inverse_cdf_by_hand():
    def tokens(weights, *draws):
        drawn, totals = inverse_cdf(torch.tensor([weights] * len(draws)), torch.tensor(draws, dtype=torch.float64))
        assert totals.tolist() == [sum(weights)] * len(draws)
        return drawn.tolist()

    assert tokens([2.0, 5.0, 3.0], 0.0, 0.19, 0.2, 0.6, 0.7, 0.9999999) == [0, 0, 1, 1, 2, 2]
    # A token of weight 0 is never drawn, neither the first nor the last nor one in between.
    assert tokens([0.0, 1.0, 0.0], 0.0, 1 - 2**-53) == [1, 1]
    assert tokens([0.0, 0.0, 0.25, 0.0, 0.75, 0.0], 0.0, 0.2, 0.3, 1 - 2**-53) == [2, 2, 4, 4]
    # Blocks of 256 tokens, of which the first and the last have no weight, the second 3 + 1 and the third 4.
    blocks = torch.zeros(4, 256)
    blocks[1, 7], blocks[1, 250], blocks[2, 9] = 3.0, 1.0, 4.0
    expected = [256 + 7, 256 + 7, 256 + 250, 256 + 250, 512 + 9, 512 + 9]
    assert tokens(blocks.flatten().tolist(), 0.0, 0.37, 0.38, 0.49, 0.5, 1 - 2**-53) == expected


def test_what_is_first_above_sums_that_fall_by_rounding():
    """A search among them may end anywhere, but parts 0 and 3 are 0."""
    parts = torch.tensor([[0.0, 0.5, 0.5, 0.0]], dtype=torch.float64).expand(4, 4)
    sums = torch.tensor([[0.0, 0.5, 1.0 - 2**-53, 1.0]], dtype=torch.float64).expand(4, 4)
    wanted = torch.tensor([[-(2**-53)], [0.0], [0.5], [1.0]], dtype=torch.float64)
    assert first_above(sums, parts, wanted).tolist() == [[1], [1], [2], [2]]


@pytest.mark.parametrize("draw", [1 - 2**-53, 1 - 2**-25, 1 - 2**-26, 1 - 2**-24, 0.0, 2**-53])
def test_no_draw_takes_a_token_of_probability_0(monkeypatch, draw):
    """fp32 rounds draws from 1 - 2**-25 on to 1, past all tokens. The first and the last token here can't be drawn."""
    model = tiny_model()
    real = model.lm_head.forward

    def masked(hidden):
        logits = real(hidden)
        logits[:, :5] = logits[:, 40:] = -torch.inf
        return logits

    monkeypatch.setattr(model.lm_head, "forward", masked)
    monkeypatch.setattr(torch, "rand", lambda count, **_: torch.full((count,), draw, dtype=torch.float64))
    [sample] = generate(LocalEngine(model, 1), Request((1, 2, 3), 3, (), 0))
    assert sample.ids == ((39,) * 3 if draw > 0.5 else (5,) * 3)
    assert all(math.isfinite(logprob) for logprob in sample.logprobs)


def test_an_adapter_that_makes_the_model_compute_nan_is_refused():
    model = tiny_model()
    model.lm_head.weight.data[7] = torch.nan
    for sampling in (Sampling(), GREEDY):
        with refused("with adapter base the model's probabilities are NaN"):
            generate(LocalEngine(model, 1), Request((1, 2, 3), 3, (), 0, sampling))
