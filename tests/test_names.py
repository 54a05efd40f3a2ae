"""The package uses the terms of the field for its names."""

import re

import pytest
from names import defined_names

# Words that are not used for names, and the term to use instead. A word is a part of a
# name between underscores or capitals.
TERMS = {
    "address addresses": "key, indices",
    "answer asked told tell hear heard listens": "result, request, callback, notify",
    "beginning beginnings": "initial state, reset seed",
    "blame blamed": "error, explain",
    "crew fleet": "worker pool, batched environments",
    "critic critics vf": "baseline, values",
    "cut": "truncated",
    "decision decisions": "action, actor policy",
    "deltas": "advantages",
    "discounted_rewards episode_reward score": "returns, episode_return",
    "done dones": "terminated, truncated",
    "figures": "metrics",
    "gammas lam": "discounts, gae_lambda",
    "greedy": "deterministic",
    "lesson lessons rule": "baseline batch, estimator",
    "look looks meet meets": "update_normalizer, build_for_env",
    "made given seen chosen wants": "a noun",
    "memory": "recurrent state",
    "obs": "observations",
    "player": "collect, collector",
    "population": "SeedResults",
    "siblings": "group",
    "slot slots": "env_index",
    "world worlds": "environment, tensor environment",
}
# Terms of Python and of mathematics (the score function is d ln p / d parameter), and a
# public attribute.
EXCEPTIONS = {
    "ScoreFunction",
    "ScoreFunctionEstimator",
    "check_score_function",
    "score_function",
    "score_functions",
    "__slots__",
    "chain_rule",
    "episodes_seen",
    "address",
    "_address",
    "_check_address",
}


def words(name):
    """Returns the lower-case words of a name in snake case or in camel case."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    return [part.lower() for part in parts]


@pytest.mark.parametrize("unwanted", TERMS)
def test_names_use_the_terms_of_the_field(unwanted):
    found = {
        name: files
        for name, files in defined_names().items()
        if name not in EXCEPTIONS
        and any(f"_{word}_" in f"_{'_'.join(words(name))}_" for word in unwanted.split())
    }
    assert found == {}, f"Use instead: {TERMS[unwanted]}"


def test_a_name_in_camel_case_is_divided_into_words():
    assert words("WorkerPool") == ["worker", "pool"]
    assert words("_XLARollout") == ["xla", "rollout"]
    assert words("max_episode_steps") == ["max", "episode", "steps"]
