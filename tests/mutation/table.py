"""Stores the result of each change, and the explanations of changes that survive."""

import collections
import pathlib
from typing import NamedTuple

from mutation import mutations

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "tf_reinforce"
RESULTS = HERE / "results.tsv"
EXPLAINED = HERE / "explained.tsv"
SHARE = 0.26  # of all changes; see `mutations.sample`
MODULES = [
    "functional/returns",
    "functional/losses",
    "functional/eligibility",
    "data/episodes",
    "data/minibatches",
    "data/action_masks",
    "data/seeding",
    "data/tensor_noise",
    "data/mask_layouts",
    "data/nests",
    "heads/*",
    "baselines/*",
    "policies/normalization",
    "policies/actor",
    "serving/*",
    "algorithm/*",
    "collect/*",
    "training/collector",
    "training/learner",
    "training/trainer",
    "experiments/multi_seed",
]
CLASSES = {
    "equivalent": "no caller can see a difference",
    "message": "only the text of an error or of a log line differs",
    "speed": "only time or memory differs",
}
CAUGHT = ("caught", "timeout", "memory", "crash")


class Result(NamedTuple):
    """The result of one change."""

    id: str
    module: str
    function: str
    operator: str
    before: str
    after: str
    fingerprint: str
    verdict: str  # one of `CAUGHT`, "survived", or "unreached" if no test runs the line
    test: str  # the test that failed, or the number of tests that passed
    seconds: str


class Explanation(NamedTuple):
    """The reason why no test can detect a change that survives."""

    id: str
    module: str
    function: str
    before: str
    after: str
    kind: str  # one of `CLASSES`
    reason: str


def paths(only=None):
    """Returns the modules as paths inside the package, in the order of the campaign."""
    names = [
        str(path.relative_to(PACKAGE))
        for pattern in MODULES
        for path in sorted(PACKAGE.glob(pattern + ".py"))
    ]
    return [n for n in names if only is None or any(_matches(n, x) for x in only)]


def _matches(name, pattern):
    pattern = pattern.removesuffix(".py")
    return name.removesuffix(".py") == pattern or name.startswith(
        pattern.rstrip("/*") + "/"
    )


def mutants(only=None, share=SHARE):
    """Returns the sampled changes of these modules."""
    result, fingerprints = [], {row.id: row.fingerprint for row in results().values()}
    for name in paths(only):
        source = (PACKAGE / name).read_text()
        sampled = mutations.sample(mutations.mutants(name, source), share, fingerprints)
        result += [m for m in sampled if mutations.compiles(m, source)]
    return result


def results():
    """Returns `{id: Result}`; the last line of an id is valid."""
    return {row.id: row for row in _rows(RESULTS, Result)}


def explanations():
    """Returns `{id: Explanation}`."""
    return {row.id: row for row in _rows(EXPLAINED, Explanation)}


def _rows(path, kind):
    if not path.exists():
        return []
    lines = path.read_text().splitlines()[1:]
    return [kind(*line.split("\t")) for line in lines]


def append(result):
    """Appends one line; several processes may append at the same time."""
    if not RESULTS.exists():
        RESULTS.write_text("\t".join(Result._fields) + "\n")
    with RESULTS.open("a") as file:
        file.write("\t".join(result) + "\n")


def explain(mutant, kind, reason):
    """Adds or replaces an explanation."""
    rows = explanations()
    rows[mutant.id] = Explanation(
        mutant.id,
        mutant.module,
        mutant.function,
        mutant.before,
        mutant.after,
        kind,
        reason,
    )
    _write(EXPLAINED, Explanation, rows.values())


def _write(path, kind, rows):
    order = {name: number for number, name in enumerate(paths())}
    rows = sorted(rows, key=lambda r: (order.get(r.module, -1), *r[1:3], r.id))
    lines = ["\t".join(line) for line in (kind._fields, *rows)]
    path.write_text("\n".join(lines) + "\n")


def tidy(ids):
    """Sorts the table of results, and removes changes that are not in `ids`."""
    _write(RESULTS, Result, [r for r in results().values() if r.id in ids])


def summary(sampled):
    """Returns counts by module, and the changes that are neither caught nor explained."""
    rows, reasons = results(), explanations()
    counts = collections.defaultdict(collections.Counter)
    unexplained = []
    for mutant in sampled:
        row = rows.get(mutant.id)
        fresh = row is not None and row.fingerprint == mutant.fingerprint
        if fresh and row.verdict in CAUGHT:
            state = "caught"
        elif mutant.id in reasons:
            state = reasons[mutant.id].kind
        elif fresh:
            state = "unexplained"
            unexplained.append(row)
        else:
            state = "not run"
        counts[mutant.module][state] += 1
        counts[mutant.module]["mutants"] += 1
    return counts, unexplained


def format_summary(counts):
    """Returns the summary as lines of text."""
    columns = ["mutants", "caught", *CLASSES, "unexplained", "not run"]
    total = sum(counts.values(), collections.Counter())
    lines = [" ".join([f"{'module':26}", *(f"{c:>11}" for c in columns)])]
    for name, count in [*counts.items(), ("all", total)]:
        lines.append(" ".join([f"{name:26}", *(f"{count[c]:11}" for c in columns)]))
    return lines
