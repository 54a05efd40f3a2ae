"""Sweeps over many cases, of which the default suite runs only a few."""

import pytest


def some(cases, always):
    """Returns cases for `parametrize`, marked slow unless they are in `always`.

    `make test` runs those in `always`, `make slow` the others. A tuple is a case with a
    value for each argument. A dict stands for its keys.
    """
    cases, always = list(cases), list(always)
    unknown = [case for case in always if case not in cases]
    if unknown:
        raise ValueError(f"`always` must name some of {cases}. Received: {unknown}")
    marks = [() if case in always else pytest.mark.slow for case in cases]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case, mark in zip(cases, marks, strict=True)
    ]


def rare(*values):
    """Returns a case that only `make slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
