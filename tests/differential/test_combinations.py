"""Tests about twenty random agents in all comparisons; `make slow` tests thousands."""

import dataclasses
import inspect

import combinations
import pairs
import pairwise
import parts
import pytest
import run
import sweeps
from definition import Definition

import tf_reinforce as tfr


def cheap(seed):
    """Returns whether a combination takes less than a second, as seven of ten do."""
    c = combinations.draw(seed, pair=None)
    steps = c.updates * c.passes * (1 if c.minibatch_size in (None, 50) else 3)
    return steps <= (1 if c.recurrent else 3)


CHEAP = [seed for seed in range(20) if cheap(seed)]


@pytest.mark.parametrize("seed", sweeps.some(CHEAP, always=CHEAP[::3]))
def test_gradient_and_update_equal_their_definition(seed):
    pairs.gradient(quick(combinations.draw(seed, pair=None)))


@pytest.mark.parametrize("pair", ["resumed", "environments", "acting"])
def test_pair_of_programs_agrees_on_a_random_agent(pair):
    pairs.SECOND_PROGRAMS[pair](quick(combinations.draw(0, pair=pair)))


# Arguments of `compile` and `fit` that no combination draws: data, reports and budgets,
# and options that save time, which `tests/properties/test_options_that_save.py` compares.
NOT_DRAWN = {
    *("num_envs", "workers", "name", "env", "epochs", "steps", "episodes_per_epoch"),
    *("steps_per_epoch", "callbacks", "validation_env", "validation_freq"),
    *("validation_episodes", "initial_epoch", "env_kwargs", "max_episode_steps"),
    *("resume", "on_bad_env", "on_env_error", "step_timeout", "verbose"),
    *("reset_options", "env_attrs"),
}


def test_every_option_of_an_agent_is_drawn_or_listed():
    """A new option has a definition in NumPy, or a reason why it needs none."""
    methods = tfr.Reinforce.__init__, tfr.Reinforce.compile, tfr.Reinforce.fit
    drawn = combinations.Combination.__dataclass_fields__
    signatures = [inspect.signature(x) for x in methods]
    pairwise.expect_listed(signatures, [NOT_DRAWN, drawn])


def quick(c):
    """Returns the combination without graphs, which take seconds to trace."""
    return dataclasses.replace(c, traced=False)


def test_combination_depends_on_its_seed_only_and_repr_is_valid_code():
    c = combinations.draw(5)
    assert c == combinations.draw(5) != combinations.draw(6)
    assert eval(repr(c), {"Combination": combinations.Combination}) == c


def test_every_value_of_an_option_is_drawn():
    drawn = [combinations.draw(seed) for seed in range(400)]
    assert {c.policy for c in drawn} == {*combinations.PLAIN, *combinations.RECURRENT}
    assert {c.head for c in drawn} == {*combinations.HEADS}
    assert {c.baseline for c in drawn} == {*combinations.BASELINES}
    assert {c.dtype for c in drawn} == {*combinations.DTYPES}
    assert {c.pair for c in drawn} == {*combinations.PAIRS, None}


@pytest.mark.slow
def test_rounding_error_of_an_ill_conditioned_gradient_is_tolerated():
    """Means are -293 and σ is 0.005, so that last bits of tanh change 1e-5 of the sum."""
    c = combinations.draw(3269)
    pairs.compare_updates(c, measure_rounding=True)
    measured, exact = (
        Definition(c, *pairs.weights_of(parts.agent_of(c)), measure_rounding=x)
        for x in (1, 0)
    )
    record = parts.record_of(c, 0)
    (sums, *_), (plain, *_) = measured.gradients(record), exact.gradients(record)
    for ours, theirs in zip(sums.total, plain.total, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    largest, _, rounding = sums.largest()
    assert 1e-9 * largest < rounding < 1e-5 * largest
    assert plain.largest()[2] == 0


@pytest.mark.parametrize("dtype", [sweeps.rare("float32"), "float64"])
def test_disagreement_is_found_and_names_its_combination(monkeypatch, dtype):
    """The discount of the agent differs from that of the definition."""
    agent_of = parts.agent_of

    def other(c):
        agent = agent_of(c)
        estimator = agent.trainer.estimator
        estimator.options = dataclasses.replace(estimator.options, gamma=0.9 * c.gamma)
        return agent

    c = dataclasses.replace(
        quick(combinations.draw(4, pair=None)),
        gamma=0.9,
        reward_kind="normal",
        rows=5,
        dtype=dtype,
    )
    pairs.gradient(c)
    monkeypatch.setattr(parts, "agent_of", other)
    with pytest.raises(pairs.Disagreement, match="gradient"):
        pairs.gradient(c)
    monkeypatch.setattr(combinations, "draw", lambda seed: c)
    ((seed, names, problem, _),) = run.compare_seeds([4])
    assert (seed, names) == (4, ["gradient"]) and repr(c) in problem


REFUSED = {
    "a discount above one": dict(gamma=1.5),
    "λ without a value": dict(gae_lambda=0.5, baseline=None),
    "λ with whole returns": dict(gae_lambda=0.5, returns="whole", baseline="shared"),
    "a policy without values": dict(baseline="shared", policy="sequential"),
    "an unknown value": dict(scale_advantages="sometimes"),
    "a negative bonus": dict(entropy_coef=-1.0, entropy_schedule=False),
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_invalid_combinations_raise_value_error(changes):
    c = dataclasses.replace(combinations.draw(1, pair=None), **changes)
    with pytest.raises(ValueError):
        parts.agent_of(c)


@pytest.mark.slow
def test_thousands_of_combinations_agree():
    """Runs the same as `python tests/differential/run.py --count 2000 --seed 100000`."""
    results = list(run.compare_all(100_000, 2000, 1))
    print(f"{len(results)} combinations from seed 100000\n{run.table(results)}")
    assert [result[2] for result in results if result[2]] == []
    assert tfr.__version__
