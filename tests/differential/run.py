"""Compares random agents with their definition, and engines with each other.

    python tests/differential/run.py --count 5000 --seed 0

prints every disagreement with its combination, and a table of the pairs with counts and
tolerances. The exit code is 1 if there was a disagreement.

    python tests/differential/run.py --again 1234

compares the one combination of an integer.
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

BATCH_SIZE = 200  # combinations in one process; its exit frees all graphs


def compare_seeds(seeds):
    """Compares the combinations of some integers in this process.

    Returns:
        List of `(seed, pairs, problem, seconds)`. The problem is `None` or a text.
    """
    import combinations
    import keras
    import pairs

    results = []
    for seed in seeds:
        c, start = combinations.draw(seed), time.process_time()
        problem = None
        try:
            pairs.compare(c)
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{pathlib.Path(frame.filename).name}:{frame.lineno}"
            problem = f"{type(error).__name__} at {place}: {first}\n    {c!r}"
            print(f"disagreement {seed}: {problem}", flush=True)
        results.append((seed, pairs.names(c), problem, time.process_time() - start))
        keras.backend.clear_session(free_memory=False)
        if len(results) % 50 == 0:
            gc.collect()
            print(f"{len(results)} from seed {seeds[0]}", file=sys.stderr, flush=True)
    return results


def batches(first, count):
    seeds = range(first, first + count)
    return [list(seeds[i : i + BATCH_SIZE]) for i in range(0, count, BATCH_SIZE)]


def compare_all(first, count, jobs):
    """Yields the results of all combinations; each batch has its own process."""
    context = multiprocessing.get_context("spawn")
    options = dict(max_workers=jobs, mp_context=context, max_tasks_per_child=1)
    with concurrent.futures.ProcessPoolExecutor(**options) as pool:
        futures = [pool.submit(compare_seeds, seeds) for seeds in batches(first, count)]
        for future in concurrent.futures.as_completed(futures):
            for result in future.result():
                yield result
            print(f"up to {result[0]}: done", file=sys.stderr, flush=True)


def table(results):
    """Returns the table of the pairs, with counts and tolerances."""
    import pairs

    counts = collections.Counter(name for result in results for name in result[1])
    return "\n".join(
        f"| {name} | {counts[name]} | {pairs.DESCRIPTIONS[name]} |"
        for name in pairs.DESCRIPTIONS
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="the first integer")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--again", type=int, help="compare only this integer, with a traceback"
    )
    options = parser.parse_args()
    if options.again is not None:
        import combinations
        import pairs

        print(combinations.draw(options.again))
        pairs.compare(combinations.draw(options.again))
        return 0
    print(f"{options.count} combinations from seed {options.seed}", flush=True)
    start = time.time()
    results = list(compare_all(options.seed, options.count, options.jobs))
    disagreements = sum(result[2] is not None for result in results)
    print(f"\n| pair | compared | equality |\n|---|---|---|\n{table(results)}\n")
    seconds = sum(result[3] for result in results)
    print(
        f"{len(results)} combinations, {disagreements} disagreements, "
        f"{time.time() - start:.0f} s ({seconds:.0f} s of them computing)"
    )
    return int(disagreements > 0)


if __name__ == "__main__":
    sys.exit(main())
