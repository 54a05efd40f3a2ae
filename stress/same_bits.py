"""Compares SHA-256 digests of trainings in one process and with different workers.

    python stress/same_bits.py [--out FILE.json] [--updates 5] [--only NAME …]

Each training of `worker_trainings.py` runs in one process, with 2, 3 and 8 workers of
this machine, and with 4 workers on 1, 2 and 4 nodes of a Ray cluster, which are on this
machine too. Four digests must be equal for all kinds of workers: all weights, counters
and optimizer variables; all logs with those of a validation after each update, except
`steps_per_second`, and `worker_restarts`, which only workers of a cluster log; all
episodes in the order in which callbacks receive them; and the metrics of an evaluation,
which uses the same kind of workers.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))
LOCAL = {"1 process": 1, "2 local workers": 2, "3 local workers": 3, "8 local workers": 8}
NODES = {"Ray, 1 node": 1, "Ray, 2 nodes": 2, "Ray, 4 nodes": 4}
KINDS = [*LOCAL, *NODES]
NUM_RAY_WORKERS = 4
PARTS = "weights", "logs", "episodes", "evaluation"


def child(kind, updates, only, out):
    """Runs the trainings with one kind of workers, and writes their digests to a file."""
    import ray_cluster
    import worker_trainings

    import tf_reinforce as tfr

    with contextlib.ExitStack() as stack:
        workers = LOCAL.get(kind)
        if kind in NODES:
            cores = [NUM_RAY_WORKERS // NODES[kind]] * NODES[kind]
            address = stack.enter_context(ray_cluster.start(cores)).address
            workers = tfr.collect.RayWorkers(NUM_RAY_WORKERS, address=address)
        results = {}
        for name in worker_trainings.TRAININGS:
            if not only or name in only:
                start = time.perf_counter()
                results[name] = _digests(worker_trainings, name, updates, workers)
                seconds = time.perf_counter() - start
                print(f"{kind}: {name}: {seconds:.1f} s", flush=True)
    pathlib.Path(out).write_text(json.dumps(results))


def _digests(trainings, name, updates, workers):
    """Returns a dict of the digests of one training and of an evaluation after it.

    For Ray, the dict also contains the number of nodes on which the workers ran.
    """
    _, env, fit = trainings.TRAININGS[name]()
    options = {"validation_env": env, "validation_episodes": 5, "workers": workers}
    nodes = trainings.NodesOfActors() if not isinstance(workers, int) else None
    callbacks = [nodes] if nodes else []
    options |= {"callbacks": callbacks, "without": ["worker_restarts"]}
    agent, _, digests = trainings.train(name, updates, **options)
    limit = fit.get("max_episode_steps")
    options = {"seed": 5, "workers": workers, "max_episode_steps": limit}
    metrics = agent.evaluate(env, 20, **options)
    metrics.pop("worker_restarts", None)
    digests = {**digests, "evaluation": trainings.digest_of_numbers(metrics)}
    return {**digests, "nodes": len(nodes.ids)} if nodes else digests


def run(kind, updates, only):
    """Returns a dict from the names of trainings to their digests."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "digests.json"
        command = [sys.executable, os.path.abspath(__file__), "--child", kind]
        command += ["--out", str(out), "--updates", str(updates), "--only", *only]
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        # MuJoCo writes warnings to a file in the current folder.
        options = {"cwd": folder, "env": environment, "stderr": subprocess.PIPE}
        process = subprocess.run(command, text=True, **options)
        if process.returncode:
            raise RuntimeError(f"{kind}: {process.stderr[-4000:]}")
        return json.loads(out.read_text())


def unequal_parts(expected, received):
    """Returns the parts of a training whose digests differ, a list of names."""
    return [part for part in PARTS if received.get(part) != expected[part]]


def wrong_nodes(results):
    """Returns the Ray trainings whose workers did not run on all nodes."""
    return {
        f"{name}, {kind}": digests["nodes"]
        for kind in results
        for name, digests in results[kind].items()
        if kind in NODES and digests["nodes"] != NODES[kind]
    }


def print_table(results, kinds):
    """Prints a row for each training, and the digests that differ from one process."""
    first, *others = kinds
    for name, expected in results[first].items():
        digests = ", ".join(f"{part} {expected[part][:12]}" for part in PARTS)
        print(f"\n{name}\n  {first}: {digests}")
        for kind in others:
            parts = unequal_parts(expected, results[kind].get(name, {}))
            text = f"DIFFERENT {', '.join(parts)}" if parts else "equal"
            print(f"  {kind}: {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.updates, options.only, options.out)
        return 0
    kinds = ["1 process", *(kind for kind in options.kinds if kind != "1 process")]
    results = {kind: run(kind, options.updates, options.only) for kind in kinds}
    expected = results["1 process"]
    unequal = {
        f"{name}, {kind}": parts
        for name, digests in expected.items()
        for kind in kinds
        if (parts := unequal_parts(digests, results[kind].get(name, {})))
    }
    print_table(results, kinds)
    print(
        f"\n{len(expected)} trainings, {len(kinds)} kinds of workers, "
        f"{len(unequal)} trainings with unequal digests, "
        f"{len(unused := wrong_nodes(results))} with unused nodes"
    )
    if options.out:
        result = {"unequal": unequal, "unused nodes": unused, "digests": results}
        pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(unequal or unused) or not expected or len(kinds) < 2)


if __name__ == "__main__":
    sys.exit(main())
