"""Tests the output and the errors of `tf-reinforce explain`."""

import re

import pytest

from tf_reinforce import cli
from tf_reinforce.functional import explanation


def run_explain(capsys, arguments):
    """Runs `tf-reinforce explain`, and returns its output."""
    assert cli.main(["explain", *arguments.split()]) == 0
    return capsys.readouterr().out


def columns(text):
    """Returns the numbers below each heading, from the last four columns."""
    rows = [re.findall(r"-?\d+\.\d{4}", line) for line in text.splitlines()]
    rows = [[float(x) for x in row] for row in rows if len(row) >= 5]
    return dict(zip(("d prob", "closed", "automatic", "gap"), list(zip(*rows))[-4:]))


def test_probs_and_action_print_gradients_of_probability_and_logarithm(capsys):
    text = run_explain(capsys, "--probs 0.69 0.1 0.2 0.01 --action 0")
    assert "log-probability -0.3711, probability 0.6900" in text
    assert columns(text) == {
        "d prob": (0.31, -0.69, -0.69, -0.69),
        "closed": (0.4493, -1, -1, -1),
        "automatic": (0.4493, -1, -1, -1),
        "gap": (0, 0, 0, 0),
    }


def test_unnormalized_probs_scale_the_gradients_inversely(capsys):
    text = run_explain(capsys, "--probs 69 10 20 1 --action 0")
    assert "log-probability -0.3711, probability 0.6900" in text
    assert columns(text)["d prob"] == (0.0031, -0.0069, -0.0069, -0.0069)
    assert columns(text)["closed"] == (0.0045, -0.01, -0.01, -0.01)


def test_logits_counts_and_gaussian_parameters_print_closed_forms(capsys):
    text = run_explain(capsys, "--logits 0 0 --action 1")
    assert columns(text)["closed"] == columns(text)["automatic"] == (-0.5, 0.5)
    text = run_explain(capsys, "--probs 0.69 0.1 0.2 0.01 --counts 3 1 1 0")
    assert "-2.0295" in text
    assert columns(text)["closed"] == (-0.6522, 5, 0, -5)
    text = run_explain(capsys, "--logits 0 0 --counts 3 1")
    assert columns(text)["closed"] == columns(text)["automatic"] == (1, -1)
    text = run_explain(capsys, "--probs 1 0 --action 0")
    assert columns(text)["closed"] == columns(text)["automatic"] == (0, -1)
    alone = run_explain(capsys, "--counts 3 1")
    assert columns(alone)["closed"] == (2, -2)
    text = run_explain(capsys, "--mean 0 --std 2 --sample 1")
    for line in ("mean .* 0.2500 +0.2500", "std .* -0.3750 +-0.3750", "log std .* -0.75"):
        assert re.search(f"d / d {line}", text)


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e9])
def test_numbers_have_four_decimals_and_no_exponent(scale):
    text = explanation.text(probs=[scale, 3 * scale], action=1)
    numbers = re.findall(r"[-\d.]+\d+[eE.\d+-]*", text.split("\n\n")[1])
    assert numbers and all(re.fullmatch(r"-?\d+\.\d{4}", x) for x in numbers)
    assert "-0.0000" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        dict(counts=[]),
        dict(counts=[[1, 2]]),
        dict(counts=["a"]),
        dict(probs=[[0.5, 0.5]], action=0),
        dict(probs=[0.5, 0.5], action=[0]),
        dict(mean=[], std=[], sample=[]),
    ],
    ids=str,
)
def test_nested_or_empty_arguments_raise(arguments):
    with pytest.raises(ValueError, match="must be (one number|a row)"):
        explanation.text(**arguments)


def test_command_line_accepts_negative_numbers_with_exponents(capsys):
    text = run_explain(capsys, "--logits -1e-3 2e-3 --action 1")
    assert columns(text)["closed"] == (-0.4993, 0.4993)
    assert "d / d mean" in run_explain(capsys, "--mean -1E-3 --std 1 --sample -.5")


def test_columns_are_wide_enough_for_large_numbers(capsys):
    for arguments in ("--logits 1000000 0.5 --action 1", "--counts 123456 7"):
        lines = run_explain(capsys, arguments).split("\n\n")[1].splitlines()
        assert len({len(line) for line in lines}) == 1
        assert all(len(line.split("  ")) >= 7 for line in lines)


REFUSED = {
    "--probs 0.5 0.5": "Pass `probs` or `logits` with",
    "--probs 1 1 --logits 0 0 --action 0": "Received: action, logits, probs",
    "--mean 0 --std 1": "Received: mean, std",
    "--probs 0.5 0.5 --action 2": "0 to 1",
    "--probs 0.5 0.5 --action 0.5": "whole numbers",
    "--probs 1 -1 --action 0": "must not be negative",
    "--probs 1 0 --action 1": "`probs` must be above zero",
    "--probs nan 1 --action 0": "must be finite",
    "--logits 1 2 --counts 1 2 3": "2 logits, 3 counts",
    "--logits 1 2 --counts 1 0.5": "whole numbers",
    "--probs 1 2 --counts 0 0": "a sum of at least 1",
    "--mean 0 0 --std 1 --sample 0 0": "2 mean, 1 std, 2 sample",
    "--mean 0 --std 0 --sample 0": "above zero",
    "--mean 0 --std 1e-200 --sample 1": "too large for a float64",
    "--probs 1e308 1e308 --action 0": "finite sum",
    "--counts inf 1": "`counts` must be finite",
    "--counts nan 1": "`counts` must be finite",
    "--logits -inf 0 --action 1": "`logits` must be finite",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_invalid_requests_print_an_error_and_return_2(arguments, capsys):
    assert cli.main(["explain", *arguments.split()]) == 2
    assert REFUSED[arguments] in capsys.readouterr().err
