"""Tests every reported return: files and printed texts equal the episodes played.

A script chooses the action of the agent after each update, and the environment stores
each episode that ends. The best agent is not the last one, seeds have different returns,
and the returns and lengths of the episodes of an evaluation all differ.
"""

import contextlib
import csv
import io
import json

import gymnasium as gym
import keras
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce import cli

EPISODES, EVALUATION = 3, 4  # episodes of an update and of an evaluation
ACTIONS = {  # after each update, for each seed
    0: [1, 7, 5, 4, 6],
    1: [2, 5, 1, 8, 3],
}
PLAYED = []  # (return, length, terminated) of each episode, in the order of their ends


class Scripted(gym.Env):
    """The return is the first action and a bonus below 1; there are 1 to 3 steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rewards, self.end = [], int(self.np_random.integers(1, 4))
        self.bonus = int(self.np_random.integers(1000)) / 1000
        return np.zeros(1, np.float32), {}

    def step(self, action):
        is_end = len(self.rewards) + 1 == self.end
        self.rewards.append(self.bonus * is_end + (0 if self.rewards else int(action)))
        terminated = is_end and self.bonus < 0.5
        if is_end:
            PLAYED.append((sum(self.rewards), self.end, terminated))
        return np.zeros(1, np.float32), self.rewards[-1], terminated, is_end, {}


class Script(keras.callbacks.Callback):
    """Makes the policy choose the actions of a script, whatever the agent has learned."""

    def __init__(self, actions):
        super().__init__()
        self.actions = actions

    def choose(self, action):
        kernel, bias = self.model.policy.layers[-1].weights
        kernel.assign(0 * kernel)
        bias.assign(1000.0 * np.eye(10)[action])

    def on_train_begin(self, logs=None):
        self.choose(0)

    def on_train_batch_end(self, batch, logs=None):
        self.choose(self.actions[min(self.model.updates, 5) - 1])


@pytest.fixture(scope="module", autouse=True)
def scripted():
    original = tfr.Reinforce.fit

    def fit(self, env, *, callbacks, seed, **options):
        script = Script(ACTIONS[seed])
        return original(self, env, callbacks=[script, *callbacks], seed=seed, **options)

    gym.register("ScriptedResults-v0", Scripted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfr.Reinforce, "fit", fit)
        yield
    del gym.registry["ScriptedResults-v0"]


def statistics(played):
    """Returns the log keys of episodes, from their definitions."""
    returns, lengths, _ = map(np.array, zip(*played, strict=True))
    assert len(set(returns.tolist())) == len(returns)
    mean = sum(returns.tolist()) / len(returns)
    return {
        "episode_return": mean,
        "episode_return_min": min(returns),
        "episode_return_max": max(returns),
        "episode_return_std": (sum((returns - mean) ** 2) / len(returns)) ** 0.5,
        "episode_length": sum(lengths) / len(lengths),
        "episodes": len(returns),
    }


SMALL = ["--hidden", "4", "--num-envs", "1", "--eval-episodes", f"{EVALUATION}"]


def command(*words):
    """Runs a command, and returns the printed text and the episodes that it played."""
    start = len(PLAYED)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main([str(word) for word in words]) == 0
    return printed.getvalue(), PLAYED[start:]


def rows(path):
    with open(path, newline="") as file:
        return [
            {key: float(value) for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


class Training:
    """A training with an evaluation after the updates 2, 4 and 5, and one at its end."""

    def __init__(self, folder, seed):
        self.folder, self.seed = folder / f"seed_{seed}", seed
        options = ["--epochs", 5, "--episodes-per-epoch", EPISODES, "--eval-every", 2]
        options += [*SMALL, "--seed", seed, "--run-dir", self.folder]
        self.printed, played = command("train", "ScriptedResults-v0", *options)
        self.updates, self.evaluations = [], {}
        for update in range(1, 6):
            self.updates.append([played.pop(0) for _ in range(EPISODES)])
            if update in (2, 4, 5):
                self.evaluations[update] = [played.pop(0) for _ in range(EVALUATION)]
        self.final = played
        self.steps = np.cumsum([sum(x[1] for x in update) for update in self.updates])
        self.log = rows(self.folder / "log.csv")

    @property
    def mean_return(self):
        return statistics(self.final)["episode_return"]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "group"
    return [Training(folder, seed) for seed in (0, 1)]


def test_files_and_text_of_a_training_are_those_of_its_episodes(trainings):
    """The best of the evaluated agents is that of update 4, and the last one is worse."""
    training = trainings[1]
    assert len(training.final) == EVALUATION and len(training.log) == 5
    for number, (row, played) in enumerate(
        zip(training.log, training.updates, strict=True), 1
    ):
        expected = {**statistics(played), "epoch": number - 1}
        expected["env_steps"] = training.steps[number - 1]
        for key, value in expected.items():
            assert row[key] == pytest.approx(value, rel=1e-6), key
        value = np.nan
        if number in (2, 4):
            value = statistics(training.evaluations[number])["episode_return"]
        assert row["val_episode_return"] == pytest.approx(value, nan_ok=True)
    expected = [
        (number, number // EPISODES, *played)
        for number, played in enumerate(sum(training.updates, []))
    ]
    logged = [tuple(row.values()) for row in rows(training.folder / "episodes.csv")]
    np.testing.assert_allclose(logged, expected, rtol=1e-6)
    final = statistics(training.final)
    final["env_steps"] = sum(length for _, length, _ in training.final)
    evaluation = json.loads((training.folder / "evaluation.json").read_text())
    assert evaluation == pytest.approx({**final, "updates": 5})
    means = {update: returns_of(x) for update, x in training.evaluations.items()}
    assert max(means, key=means.get) == 4
    assert {int(total) for total, *_ in training.final} == {8}  # the best agent's action
    assert tfr.load(training.folder / "agent.keras").updates == 4
    assert tfr.load(training.folder / "last.keras").updates == 5
    mean, deviation = final["episode_return"], final["episode_return_std"]
    assert f"mean return {mean:.4g} ± {deviation:.4g} over 4 new" in training.printed
    assert f"trained 5 updates, {training.steps[-1]} steps, " in training.printed
    last = f"update 5/5 · return {training.log[4]['episode_return']:.1f} · "
    assert last in training.printed
    printed, played = command(
        "evaluate", training.folder, "--episodes", "3", "--num-envs", 1
    )
    evaluation = json.loads(printed)
    assert {x: evaluation[x] for x in statistics(played)} == pytest.approx(
        statistics(played)
    )
    assert {int(total) for total, *_ in played} == {8}


def returns_of(played):
    return statistics(played)["episode_return"]


def test_seeds_are_ranked_by_their_own_evaluations(trainings):
    """A group of seeds that have all ended prints the results of all seeds."""
    folder = trainings[0].folder.parent
    returns = {x.seed: x.mean_return for x in trainings}
    printed, _ = command("train", "--resume", folder)
    low, high = sorted(returns.values())
    assert max(returns, key=returns.get) == 1
    assert (
        f"minimum {low:.4g}, median {(low + high) / 2:.4g}, maximum {high:.4g} (seed 1)"
        in printed
    )
    assert f"2 seeds, {sum(x.steps[-1] for x in trainings)} steps" in printed
    for target, code in ((low, 0), ((low + high) / 2, 0), (high, 1)):
        for training in trainings:
            path = training.folder / "config.json"
            content = json.loads(path.read_text())
            path.write_text(json.dumps({**content, "target_return": target}))
        resumed = ["train", "--resume", str(folder), "--require-target"]
        assert cli.main(resumed) == code
