"""Guards by hand-made histories."""

from dataclasses import replace

from forage.grpo.reporting import fault_of
from forage.runs.stats import StepStats


def stats(step, well_formed=0.9, searches=1.0, **training):
    return StepStats(
        step=step, adapter=f"v{step:06d}", rewards={"overall": [0.5]}, groups={"total": 1, "flat": 0, "replaced": 0},
        episodes={"count": 1, "well_formed": well_formed, "searches": searches, "turns": 2, "sampled_tokens": 9,
                  "tokens": 20},
        stops={}, faults={}, training=training,
    )  # fmt: skip


def fault(rows):
    return fault_of([stats(n, **row) for n, row in enumerate(rows)])


def test_a_fall_counts_when_its_window_is_under_the_share_of_the_best():
    good, bad = {"well_formed": 0.9}, {"well_formed": 0.3}
    assert fault([good] * 3) == ""
    assert fault([good] * 3 + [bad]) == ""  # one bad step is none: the window's mean is .7
    assert fault([good] * 3 + [bad] * 3) == "well-formed episodes fell from 0.90 to 0.30"
    assert fault([bad] * 6) == ""  # never better
    assert fault([good] * 3 + [{"well_formed": 0.5}] * 3) == ""
    both = [{**good, "entropy": 0.1}] * 3 + [{**bad, "entropy": 0.001}] * 3
    assert fault(both) == "well-formed episodes fell from 0.90 to 0.30; entropy fell to 0.0010 nats per token"
    few = [{"searches": 1.2}] * 3 + [{"searches": 0.1}] * 3
    assert fault(few) == "searches per episode fell from 1.20 to 0.10"
    assert fault([]) == ""


def test_entropy_kl_and_mismatch_have_bounds():
    assert fault([{"entropy": 0.001}] * 3) == "entropy fell to 0.0010 nats per token"
    assert fault([{"entropy": 0.1}] * 2 + [{"entropy": 0.001}]) == ""
    assert fault([{"kl": 20.0}] * 3) == "KL to the starting policy is 20, above 10"
    assert fault([{"mismatch_kl": 0.2}] * 3) == "KL of sampler to trainer is 0.2, above 0.1"
    assert fault([{"mismatch_kl": 2.26}]) == "KL of sampler to trainer is 2.26, above 0.1"  # a wrong engine at once
    assert fault([{"mismatch_kl": 0.01}] * 2 + [{"mismatch_kl": 0.2}]) == ""  # one bad step is none: the mean is .07
    assert fault([{"entropy": 0.5, "kl": 0.1, "mismatch_kl": 1e-5}] * 9) == ""


def test_tokens_that_are_no_draws():
    """.06 and .04 are .05, with an error of sqrt(.008^2 + .006^2) / 2, or .005."""
    cut = [{"excess": 0.06, "excess_error": 0.008}, {"excess": 0.04, "excess_error": 0.006}]
    assert fault(cut).startswith("sampled tokens are likelier than draws from the policy, by 0.05 nats: ")
    assert fault([{**row, "excess_error": row["excess_error"] * 2} for row in cut]) == ""  # six errors are .06
    assert fault([{"excess": 0.019, "excess_error": 1e-3}]) == ""
    assert fault([{"excess": -0.5, "excess_error": 1e-3}]) == ""


def test_updates_that_make_what_they_reward_less_likely():
    """Over the last three steps, those that measured it: -.09, -.03 and -.06 are .06 less; -.03, -.06, .06 are .01."""
    falls = [{"likelihood_gain": gain} for gain in (-0.09, -0.03, -0.06)]
    assert fault(falls) == "updates made what they reward less likely, by 0.06 nats per token"
    assert fault([*falls, {"likelihood_gain": 0.06}]) == ""
    assert fault([{}, {}, {"likelihood_gain": -0.07}]).startswith("updates made what they reward less likely, by 0.07")
    assert fault([{"likelihood_gain": 3.0}] * 3) == ""


def test_nothing_to_compare_for_long_is_a_fault():
    flat = [replace(stats(n), groups={"total": 2, "flat": 2, "replaced": 0}) for n in range(10)]
    assert fault_of(flat).startswith("in 10 steps, there was nothing to learn from")
    assert fault_of(flat[:9]) == ""
    assert fault_of([*flat[:9], stats(9)]) == ""
    # Credits of words teach where rewards are equal, and masked episodes don't where rewards differ.
    assert fault_of([*flat[:9], replace(flat[9], training={"taught": 1.0})]) == ""
    assert fault_of([replace(stats(n), training={"taught": 0.0}) for n in range(10)])
