"""Compares random agents with their definition, and engines with each other.

    python tests/differential/run.py --count 5000 --seed 0

prints every disagreement with the line that makes it again, and counts and tolerances
of the pairs. It ends with exit code 1 if there was a disagreement.

    python tests/differential/run.py --again 1234

compares the one combination of a number.
"""

import argparse
import collections
import concurrent.futures
import gc
import multiprocessing
import os
import pathlib
import sys
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

EACH = 200  # combinations in one process, which is then left with all its graphs


def several(seeds):
    """What was compared for some numbers, in this process, and how it ended.

    Returns:
        List of `(seed, pairs, problem, seconds)`; the problem is `None`, or text.
    """
    import combinations
    import keras
    import pairs

    found = []
    for seed in seeds:
        c, began = combinations.draw(seed), time.process_time()
        problem = None
        try:
            pairs.compare(c)
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{pathlib.Path(where.filename).name}:{where.lineno}"
            problem = f"{type(error).__name__} at {place}: {first}\n    {c!r}"
            print(f"disagreement {seed}: {problem}", flush=True)
        found.append((seed, pairs.names(c), problem, time.process_time() - began))
        keras.backend.clear_session(free_memory=False)
        if len(found) % 50 == 0:
            gc.collect()
            print(f"{len(found)} from seed {seeds[0]}", file=sys.stderr, flush=True)
    return found


def batches(first, count):
    seeds = range(first, first + count)
    return [list(seeds[i : i + EACH]) for i in range(0, count, EACH)]


def compare_all(first, count, jobs):
    """Results of all combinations; each batch in a process of its own."""
    context = multiprocessing.get_context("spawn")
    options = dict(max_workers=jobs, mp_context=context, max_tasks_per_child=1)
    with concurrent.futures.ProcessPoolExecutor(**options) as pool:
        waiting = [pool.submit(several, some) for some in batches(first, count)]
        for done in concurrent.futures.as_completed(waiting):
            for result in done.result():
                yield result
            print(f"up to {result[0]}: done", file=sys.stderr, flush=True)


def table(results):
    """Pairs with how often they were compared, and how near they have to be."""
    import pairs

    counts = collections.Counter(name for result in results for name in result[1])
    return "\n".join(
        f"| {name} | {counts[name]} | {pairs.MEANING[name]} |" for name in pairs.MEANING
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="the first number")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", type=int, help="only this one, with its traceback")
    given = parser.parse_args()
    if given.again is not None:
        import combinations
        import pairs

        print(combinations.draw(given.again))
        pairs.compare(combinations.draw(given.again))
        return 0
    print(f"{given.count} combinations from seed {given.seed}", flush=True)
    began = time.time()
    results = list(compare_all(given.seed, given.count, given.jobs))
    wrong = sum(result[2] is not None for result in results)
    print(f"\n| pair | compared | equality |\n|---|---|---|\n{table(results)}\n")
    seconds = sum(result[3] for result in results)
    print(
        f"{len(results)} combinations, {wrong} disagreements, "
        f"{time.time() - began:.0f} s ({seconds:.0f} s of them computing)"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
