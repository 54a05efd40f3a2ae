"""Tests the generator of mutants for `make mutate`, and the tables of its results."""

import ast
import collections
import pathlib
import re

import pytest
from mutation import mutations
from mutation import run
from mutation import table
from support import own_tests

TOY = '''
"""Not a statement: 1 + 1."""

SIZES = (2, 0.5)


def pick(values, limit=3, *, axis=-1) -> "x - y":
    """Text."""
    if limit < 1:
        raise ValueError(f"{limit + 1}")
    kept = values[1:]
    kept = tf.reduce_sum(kept * 2.0, axis=axis) if limit else values
    values.assign(kept, limit)
    limit += 1
    return tf.where(kept >= 0 and not limit, kept, tf.sqrt(values))


class Part:
    def __repr__(self):
        return str(1 + 1)

    def half(self, x):
        return x / 2 + x / 2
'''
EXPECTED = {
    ("", "constant", "2", "3"),
    ("", "constant", "0.5", "1.0"),
    ("pick", "constant", "3", "4"),
    ("pick", "constant", "-1", "0"),
    ("pick", "constant", "-1", "-2"),
    ("pick", "condition", "limit < 1", "True"),
    ("pick", "condition", "limit < 1", "False"),
    ("pick", "comparison", "limit < 1", "limit <= 1"),
    ("pick", "comparison", "limit < 1", "limit > 1"),
    ("pick", "constant", "1", "0"),
    ("pick", "remove statement", 'raise ValueError(f"{limit + 1}")', "pass"),
    ("pick", "slice", "1:", ":-1"),
    (
        "pick",
        "remove statement",
        "kept = tf.reduce_sum(kept * 2.0, axis=axis) if limit else values",
        "pass",
    ),
    ("pick", "condition", "limit", "True"),
    ("pick", "condition", "limit", "False"),
    (
        "pick",
        "function",
        "tf.reduce_sum(kept * 2.0, axis=axis)",
        "tf.reduce_mean(kept * 2.0, axis=axis)",
    ),
    ("pick", "arithmetic", "kept * 2.0", "kept / 2.0"),
    ("pick", "constant", "2.0", "4.0"),
    ("pick", "remove statement", "values.assign(kept, limit)", "pass"),
    (
        "pick",
        "arguments",
        "values.assign(kept, limit)",
        "values.assign(limit, kept)",
    ),
    ("pick", "remove statement", "limit += 1", "pass"),
    ("pick", "assignment", "limit += 1", "limit = 1"),
    ("pick", "arithmetic", "limit += 1", "limit -= 1"),
    (
        "pick",
        "arguments",
        "tf.where(kept >= 0 and not limit, kept, tf.sqrt(values))",
        "tf.where(kept >= 0 and not limit, tf.sqrt(values), kept)",
    ),
    ("pick", "comparison", "kept >= 0", "kept > 0"),
    ("pick", "comparison", "kept >= 0", "kept <= 0"),
    ("pick", "constant", "0", "1"),
    ("pick", "boolean", "kept >= 0 and not limit", "kept >= 0 or not limit"),
    ("pick", "negation", "not limit", "limit"),
    ("pick", "function", "tf.sqrt(values)", "values"),
    ("Part.half", "arithmetic", "x / 2 + x / 2", "x / 2 - x / 2"),
    ("Part.half", "arithmetic", "x / 2", "x * 2"),
    ("Part.half", "constant", "2", "3"),
}


def keys_of(found):
    return [(m.function, m.operator, m.before, m.after) for m in found]


def test_mutants_of_an_example_have_every_operator_and_skip_strings():
    found = keys_of(mutations.mutants("toy.py", TOY))
    assert set(found) == EXPECTED
    twice = {key for key, count in collections.Counter(found).items() if count > 1}
    assert twice == {
        ("pick", "constant", "1", "0"),
        ("Part.half", "arithmetic", "x / 2", "x * 2"),
        ("Part.half", "constant", "2", "3"),
    }


def test_apply_changes_only_the_lines_of_the_mutant():
    for mutant in mutations.mutants("toy.py", TOY):
        changed = mutations.apply(mutant, TOY)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(TOY))
        assert mutations.compiles(mutant, TOY)
        assert changed.count("\n") == TOY.count("\n")
        lines = zip(changed.splitlines(), TOY.splitlines(), strict=True)
        first, last = mutant.lines
        different = [n for n, (new, old) in enumerate(lines, 1) if new != old]
        assert set(different) <= set(range(first, last + 1))


def test_mutant_ids_are_unique_and_independent_of_lines_and_comments():
    found = {m.id: m for m in mutations.mutants("toy.py", TOY)}
    assert len(found) == len(mutations.mutants("toy.py", TOY))
    moved = TOY.replace("SIZES", "# A comment.\n\nSIZES").replace("Text.", "More text.")
    later = {m.id: m for m in mutations.mutants("toy.py", moved)}
    assert keys_of(later.values()) == keys_of(found.values())
    assert later.keys() == found.keys()
    assert all(later[i].fingerprint == found[i].fingerprint for i in found)
    edited = TOY.replace("limit += 1", "limit += 2")
    stale = {m.id: m for m in mutations.mutants("toy.py", edited)}
    for identity in stale.keys() & found.keys():
        same = stale[identity].fingerprint == found[identity].fingerprint
        assert same == (found[identity].function != "pick")


def test_sample_covers_every_function_and_larger_samples_contain_it():
    found = mutations.mutants("toy.py", TOY)
    few, more = (mutations.sample(found, share) for share in (0.0, 0.5))
    assert {m.function for m in few} == {"", "pick", "Part.half"} and len(few) == 3
    assert {m.id for m in few} < {m.id for m in more}
    assert mutations.sample(found, 1.0) == found


def test_sample_contains_the_mutants_of_the_tables():
    """A renamed variable changes the ids of mutants of its function, and no other ids."""
    found = mutations.mutants("toy.py", TOY)
    last = [m for m in found if m.function == "pick"][-1]
    chosen = mutations.sample(found, 0.0, {last.id: last.fingerprint})
    assert last in chosen and len(chosen) == 3
    assert {m.function for m in chosen} == {"", "pick", "Part.half"}
    edited = mutations.sample(found, 0.5, {last.id: "another"})
    assert edited == mutations.sample(found, 0.5)


@pytest.fixture(scope="module")
def changes():
    """Returns `{id: Mutant}` for all mutants of the package, sampled or not."""
    found = [
        mutant
        for name in table.paths()
        for mutant in mutations.mutants(name, (table.PACKAGE / name).read_text())
    ]
    assert len({m.id for m in found}) == len(found)
    return {m.id: m for m in found}


def test_every_explained_mutant_exists_and_has_a_reason(changes):
    for identity, row in table.explanations().items():
        mutant = changes[identity]
        assert (mutant.before, mutant.after) == (row.before, row.after)
        assert (mutant.module, mutant.function) == (row.module, row.function)
        assert row.kind in table.CLASSES
        assert re.search(r"\w+ \w+ \w+.*\.$", row.reason), row


def test_no_mutant_is_both_caught_and_explained(changes):
    rows = table.results()
    for identity in table.explanations():
        row = rows.get(identity)
        fresh = row is not None and row.fingerprint == changes[identity].fingerprint
        assert not (fresh and row.verdict in table.CAUGHT), row


def test_campaign_patterns_match_existing_modules():
    assert all((table.PACKAGE / name).is_file() for name in table.paths())
    for pattern in table.MODULES:
        assert list(pathlib.Path(table.PACKAGE).glob(pattern + ".py")), pattern


def test_campaign_names_existing_modules_and_tests():
    """A name of a missing file would only make a run slower."""
    assert all((table.PACKAGE / f"{name}.py").is_file() for name in own_tests.OWN)
    named = {f"tests/{name}.py" for names in own_tests.OWN.values() for name in names}
    assert [path for path in named | run.LATE if not (run.ROOT / path).is_file()] == []
