"""Stores which test detects each planted bug, and makes the table of the documents."""

import pathlib

from mutants import catalogue

FILE = pathlib.Path(__file__).with_name("killers.tsv")


def read(path=FILE):
    """Returns `[(name, test)]`; a test is a pytest node below `tests/`."""
    return [tuple(line.split("\t")) for line in path.read_text().splitlines()[1:]]


def write(killers, path=FILE):
    """Writes `{name: test}` in the order of the catalogue."""
    names = [m.name for m in catalogue.MUTANTS if m.name in killers]
    lines = ["name\ttest", *(f"{name}\t{killers[name]}" for name in names)]
    path.write_text("\n".join(lines) + "\n")


def example_table():
    """Returns the telling examples as lines of Markdown, ordered by number."""
    tests = dict(read())
    lines = ["| bug | planted | in | killed by |", "|---|---|---|---|"]
    for mutant in sorted(catalogue.MUTANTS, key=_order):
        if mutant.name in catalogue.TELLING:
            where = f"`{mutant.function}` | `{tests[mutant.name]}`"
            lines.append(f"| {mutant.number} | {mutant.sentence} | {where} |")
    return lines


def _order(mutant):
    digits = mutant.number.removeprefix("B")
    return int(digits) if digits.isdigit() else 10**6  # "own" comes last
