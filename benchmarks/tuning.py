"""Compares searches of `tf-reinforce tune` on CartPole-v1 with random draws.

    python benchmarks/tuning.py [--searches 5] [--trials 20] [--folder runs/tuning]

For each search, the program draws settings with the sampler of `tune`, and as often at
random from the same ranges, with the same budget, seeds and pruner. The first trial of a
search is the default settings; it does not count as a random draw. `tune` confirms its
five best trials with further seeds. The best settings of both are then trained with
fresh seeds, and the environment steps until an evaluation reaches the reward threshold
are compared, also for random draws that are confirmed in the same way. The program
continues in its folder after an interruption; `--part 0/2` and `--part 1/2` share the
searches of two processes.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics

import optuna

from tf_reinforce.support import startup

ENV = "CartPole-v1"
BUDGET = 50_000  # environment steps of each training
TARGET = 475.0
FRESH = 10**6  # the first fresh seed
SETTINGS = {
    "env_kwargs": {},
    "agent": {
        "gamma": 0.99,
        "learning_rate": 0.01,
        "hidden": [64, 64],
        "baseline": "leave_one_out",
    },
    "fit": {"steps": BUDGET, "num_envs": 8},
    "evaluation": {},
}


def search(folder, sampler, number, options):
    """Runs one search, or continues it; returns its result on fresh seeds as a dict."""
    from tf_reinforce.experiments import search_space
    from tf_reinforce.experiments import tuning
    from tf_reinforce.experiments import tuning_jobs

    path = folder / f"{sampler}_{number}.json"
    if path.exists():
        return json.loads(path.read_text())
    ranges = search_space.to_table(search_space.default_ranges(SETTINGS))
    config = tuning.SearchConfig(
        ENV,
        SETTINGS,
        ranges,
        engine="compiled",
        objective="steps",
        minimize=True,
        target=TARGET,
        seed=1000 * number,
        seeds=options.trainings,
        sampler=sampler,
    )
    is_random = sampler == "random"
    with tuning.open_search(folder / f"{sampler}_{number}", config) as running:
        count = options.trials + is_random
        tuning_jobs.run_trials(running, count, 1, lambda index: report(running), None)
        ranked = [x for x in running.ranked() if running.index(x) or not is_random]
        finalists = ranked[: tuning.NUM_FINALISTS]
        means = [confirmed_mean(running, trial) for trial in finalists]
        pairs = zip(means, finalists, strict=True)
        trials = [min(pairs, key=lambda pair: pair[0])[1], ranked[0]]
        results = [
            {
                "trial": running.index(trial),
                "value": trial.value,
                "settings": trial.params,
                "fresh": fresh(running.task, trial, options),
            }
            for trial in (trials if trials[0] != trials[1] else trials[:1])
        ]
    result = {"confirmed": results[0], "best value": results[-1]}
    path.write_text(json.dumps(result, indent=1) + "\n")
    return result


def confirmed_mean(running, trial):
    """Returns the mean value over the trainings of a trial and seven further ones."""
    from tf_reinforce.experiments import tuning_trial

    settings, count = running.settings(trial), running.config.confirm
    values = tuning_trial.confirm(running.task, settings, count)
    values += [training["value"] for training in trial.user_attrs["trainings"]]
    return statistics.fmean(values)


def report(running):
    trial = running.finished()[-1]
    print(running.directory.name, running.index(trial), trial.value, flush=True)


def fresh(task, best, options):
    """Returns the steps to the target with fresh seeds, which no search has used."""
    from tf_reinforce.experiments import tuning_trial

    task = dataclasses.replace(task, seed=FRESH, num_seeds=options.fresh)
    trial = optuna.trial.FixedTrial(best.params)
    tuning_trial.run(task, trial, 0)
    return [training["value"] for training in trial.user_attrs["trainings"]]


def print_table(folder, options):
    """Prints the table of docs/tuning.md, and the medians of the ratios."""
    ratios = {"best value": [], "confirmed": []}
    print("| search | tune | random draws | random draws, confirmed | settings of tune |")
    print("|---|---|---|---|---|")
    for number in range(options.searches):
        tuned, drawn = (
            json.loads((folder / f"{sampler}_{number}.json").read_text())
            for sampler in ("tpe", "random")
        )
        steps = statistics.fmean(tuned["confirmed"]["fresh"])
        others = [statistics.fmean(drawn[kind]["fresh"]) for kind in ratios]
        for kind, other in zip(ratios, others, strict=True):
            ratios[kind].append(steps / other)
        texts = (
            f"{name.partition('.')[2]} {value:.3g}"
            if isinstance(value, float)
            else f"{name.partition('.')[2]} {value}"
            for name, value in tuned["confirmed"]["settings"].items()
        )
        cells = [f"{steps:,.0f}", *(f"{x:,.0f}" for x in others), ", ".join(texts)]
        print(f"| {number} | {' | '.join(cells)} |")
    for kind, values in ratios.items():
        wins = sum(ratio < 1 for ratio in values)
        print(
            f"\nsteps of tune / steps of random draws ({kind}): median "
            f"{statistics.median(values):.2f}; fewer in {wins} of {len(values)} searches"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=5)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--trainings", type=int, default=3, help="of each trial")
    parser.add_argument("--fresh", type=int, default=20, help="seeds of the comparison")
    parser.add_argument("--folder", type=pathlib.Path, default="runs/tuning")
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    startup.import_tensorflow()
    options.folder.mkdir(parents=True, exist_ok=True)
    part, parts = map(int, options.part.split("/"))
    pairs = [(x, y) for y in ("tpe", "random") for x in range(options.searches)]
    for number, sampler in pairs[part::parts]:
        search(options.folder, sampler, number, options)
    if all((options.folder / f"{y}_{x}.json").exists() for x, y in pairs):
        print_table(options.folder, options)


if __name__ == "__main__":
    main()
