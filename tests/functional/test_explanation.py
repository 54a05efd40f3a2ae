"""Tests the output and the errors of `tf-reinforce explain`."""

import re

import pytest

from tf_reinforce import cli
from tf_reinforce.functional import explanation
from tf_reinforce.sampling import estimators


def run_explain(capsys, arguments):
    """Runs `tf-reinforce explain`, and returns its output."""
    assert cli.main(["explain", *arguments.split()]) == 0
    return capsys.readouterr().out


def columns(text):
    """Returns the numbers below each heading, from the last four columns."""
    rows = [re.findall(r"-?\d+\.\d{4}", line) for line in text.splitlines()]
    rows = [[float(x) for x in row] for row in rows if len(row) >= 5]
    return list(zip(*rows))[-4:]


PRINTED = {
    "--probs 0.69 0.1 0.2 0.01 --action 0": (
        (0.31, -0.69, -0.69, -0.69),
        (0.4493, -1, -1, -1),
    ),
    "--probs 69 10 20 1 --action 0": (
        (0.0031, -0.0069, -0.0069, -0.0069),
        (0.0045, -0.01, -0.01, -0.01),
    ),
    "--logits 0 0 --action 1": ((-0.25, 0.25), (-0.5, 0.5)),
    "--probs 0.69 0.1 0.2 0.01 --counts 3 1 1 0": (
        (-0.0857, 0.657, 0, -0.657),
        (-0.6522, 5, 0, -5),
    ),
    "--logits 0 0 --counts 3 1": ((0.25, -0.25), (1, -1)),
    "--probs 1 0 --action 0": ((0, -1), (0, -1)),
    "--counts 3 1": ((0.5, -0.5), (2, -2)),
}


@pytest.mark.parametrize("arguments", PRINTED)
def test_gradients_of_the_probability_and_of_its_logarithm_are_printed(arguments, capsys):
    by_prob, closed_form = PRINTED[arguments]
    text = run_explain(capsys, arguments)
    assert columns(text) == [
        by_prob,
        closed_form,
        closed_form,
        (0.0,) * len(by_prob),
    ]
    if "69" in arguments and "action" in arguments:
        assert "log-probability -0.3711, probability 0.6900" in text


def test_gaussian_prints_the_derivatives_by_mean_std_and_log_std(capsys):
    text = run_explain(capsys, "--mean 0 --std 2 --sample 1")
    for line in ("mean .* 0.2500 +0.2500", "std .* -0.3750 +-0.3750", "log std .* -0.75"):
        assert re.search(f"d / d {line}", text)


@pytest.mark.parametrize(
    "arguments",
    [
        dict(counts=[]),
        dict(counts=[[1, 2]]),
        dict(counts=["a"]),
        dict(probs=[0.5, 0.5], action=[0]),
    ],
    ids=str,
)
def test_nested_or_empty_arguments_raise(arguments):
    with pytest.raises(ValueError, match="must be (one number|a row)"):
        explanation.text(**arguments)


REFUSED = {
    "--probs 0.5 0.5": "Pass `probs` or `logits` with",
    "--probs 1 1 --logits 0 0 --action 0": "Received: action, logits, probs",
    "--probs 0.5 0.5 --action 2": "must lie in 0 to K - 1",
    "--probs 0.5 0.5 --action 0.5": "whole numbers",
    "--probs 1 0 --action 1": "must not have a probability of zero",
    "--logits 1 2 --counts 1 2 3": "must have the same shape",
    "--probs 1 2 --counts 0 0": "`trials` must be a positive int",
    "--mean 0 --std 1e-200 --sample 1": "too large for a float64",
    "--counts inf 1": "whole numbers",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_invalid_requests_print_an_error_and_return_2(arguments, capsys):
    assert cli.main(["explain", *arguments.split()]) == 2
    assert REFUSED[arguments] in capsys.readouterr().err


ESTIMATE = "--logits 0.5 0 -1 --costs 1 0.2 0.6"


@pytest.mark.parametrize("name", ["exact", "muprop", "disarm", "score_function"])
def test_one_estimate_is_printed_beside_the_exact_gradient(name, capsys):
    """`exact` and, with linear costs, `muprop` have no noise."""
    text = run_explain(capsys, f"--estimator {name} {ESTIMATE} --seed 4")
    *_, estimate, exact, difference = columns(text)
    assert exact == (0.1716, -0.1611, -0.0105)
    is_equal = name in ("exact", "muprop")
    assert (estimate == exact) == is_equal and (difference == (0, 0, 0)) == is_equal
    if name == "score_function":
        sample = columns(text)[0]
        probs, costs = (0.5465, 0.3315, 0.1220), (1.0, 0.2, 0.6)
        cost = sum(x * y for x, y in zip(sample, costs))
        found = [cost * (x - p) for x, p in zip(sample, probs)]
        assert estimate == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("name", ["vimco", "pathwise", "reinforce"])
def test_estimators_of_something_else_are_refused(name):
    with pytest.raises(ValueError, match="`estimator` must be one of"):
        estimators.explain(name, [0.0, 1.0], [0.0, 1.0])
    with pytest.raises(ValueError, match="3 costs and 2 logits"):
        estimators.explain("exact", [0.0, 1.0], [0.0, 1.0, 2.0])
