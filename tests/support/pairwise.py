"""Few combinations of options that together contain every pair of values."""

import itertools
import random

CANDIDATES = 40


def covering(table, excluded=lambda case: False):
    """Returns dicts of options that cover all allowed pairs of values.

    Args:
        table: Dict from options to lists of their values.
        excluded: Function of a dict, whether the combination is an error.
    """
    rng, names, cases = random.Random(0), list(table), []
    pending = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(table[a]))
        for j in range(len(table[b]))
    }

    def values(indices):
        return {name: table[name][index] for name, index in indices.items()}

    def covered(indices):
        return {*itertools.combinations(indices.items(), 2)} & pending

    while pending:
        candidates = []
        for fixed in rng.sample(sorted(pending), min(4, len(pending))):
            for _ in range(CANDIDATES):
                drawn = {name: rng.randrange(len(table[name])) for name in names}
                drawn |= dict(fixed)
                if not excluded(values(drawn)):
                    candidates.append(drawn)
            if not candidates:
                pending.discard(fixed)  # no combination is allowed
        if candidates:
            best = max(candidates, key=lambda x: len(covered(x)))
            pending -= covered(best)
            cases.append(values(best))
    return cases


def expect_listed(functions, tables):
    """Raises `AssertionError` naming each argument that is not in exactly one table.

    Args:
        functions: List of `inspect.Signature`.
        tables: List of collections of names.
    """
    arguments = {
        name
        for signature in functions
        for name, parameter in signature.parameters.items()
        if name != "self"
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    counts = {name: sum(name in table for table in tables) for name in arguments}
    unlisted = sorted(name for name, count in counts.items() if count != 1)
    assert not unlisted, f"put each of these options into one table: {unlisted}"
