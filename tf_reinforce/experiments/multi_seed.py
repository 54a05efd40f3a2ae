"""Trains several seeds in one program."""

import concurrent.futures
import itertools

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import agent as agents
from tf_reinforce import config
from tf_reinforce import envs
from tf_reinforce import optimizers
from tf_reinforce import validation
from tf_reinforce.algorithm import train_step
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.collect import make_envs
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.policies import models
from tf_reinforce.training import learner

_FEWEST = 8  # seeds for a program of their own: each has to be compiled


class SeedResults:
    """`K` agents that were trained together; see `train_seeds`.

    Attributes:
        seeds: List of `K` ints.
        history: Dict of float64 arrays `[epochs, K]` under the log keys, without
            `steps_per_second`; NaN from the update on that would not have been finite.
        failures: Dict from seeds to the number of that update, which their agents
            have not made: `agent(seed).fit(env, seed=seed)` begins with it, and says
            what is wrong.
        env_steps: Int, what all of them learned from.
    """

    def __init__(self, make, groups, history, failures, env_steps):
        self.seeds = [seed for group in groups for seed in group.seeds]
        self.history = history
        self.failures = failures
        self.env_steps = env_steps
        self._make = make
        self._groups = groups

    def agent(self, seed):
        """The agent of one seed as it was trained, `Reinforce`, ready to go on."""
        if seed not in self.seeds:
            raise ValueError(f"`seed` must be one of {self.seeds}. Received: {seed!r}")
        group = next(group for group in self._groups if seed in group.seeds)
        agent = _built(self._make, seed, group.world)
        group.write_to(agent, group.seeds.index(seed))
        if seed not in self.failures:
            optimizers.finalize(agent.optimizer)
        return agent


def train_seeds(
    make, env, seeds, *, epochs, episodes_per_epoch=16, max_episode_steps=None
):
    """Trains an agent for each of many seeds in one program, or one for each core.

    All of them play together, their weights stacked and their matrix products batched;
    each then makes its own update. An agent comes out as by
    `make(seed).fit(env, epochs=…, seed=seed)`, up to the rounding of these products.
    Faster where an operation has one thread, as the programs have a core each: begin the
    process with `tf.config.threading.set_intra_op_parallelism_threads(1)`.

    Args:
        make: Function from a seed to an agent, compiled: `Reinforce`. All must be alike,
            but for their weights, the state and the learning rate of their optimizers.
        env: `tfr.envs.TensorEnv`.
        seeds: Ints, each once.
        epochs: Int, updates of each. `compile(steps_per_execution=U)` makes U of them in
            one call.
        episodes_per_epoch: Int, episodes per update.
        max_episode_steps: Int, a time limit. Defaults to the environment's own.

    Returns:
        `SeedResults`.

    Raises:
        ValueError: when a layer of the policy cannot be stacked (convolutions cannot),
            or the agents are not alike.
        EnvironmentFault, FloatingPointError: when no seed could make its first update.

    Example:

    >>> from tf_reinforce import envs
    >>> world = envs.Bandit([0.0, 1.0])
    >>> make = lambda seed: agents.Reinforce.for_env(world, hidden=(4,), seed=seed)
    >>> results = train_seeds(make, world, range(3), epochs=20)
    >>> results.history["episode_return"].shape
    (20, 3)
    >>> results.agent(2).updates
    20
    >>> results.env_steps  # 16 episodes of one step for each update
    960
    """
    seeds = [seeding.check_seed(seed) for seed in seeds]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must be ints, each once. Received: {seeds}")
    epochs = validation.positive_int("epochs", epochs)
    count = validation.positive_int("episodes_per_epoch", episodes_per_epoch)
    if not isinstance(env, envs.TensorEnv):
        raise ValueError(
            "Many seeds at once play in a `TensorEnv`, for example "
            f"`tfr.envs.make('CartPole-v1')`. Received: {env!r}"
        )
    with make_envs.open_envs(env, 1, max_episode_steps=max_episode_steps) as world:
        groups = [_SeedGroup(world, make, some, count) for some in _partition(seeds)]
        for group in groups[1:]:
            _expect_alike(groups[0].likeness, group.likeness)
            _expect_apart(groups[0].variables, group.variables)
        with concurrent.futures.ThreadPoolExecutor(len(groups)) as threads:
            told = list(threads.map(lambda group: group.train(epochs), groups))
        told = [np.concatenate(parts, axis=1) for parts in zip(*told, strict=True)]
        history, alive = _history(*told), told[0][:, :, 0] > 0
        made = [n for group in groups for n in group.counters()[:, 0].tolist()]
        failed = ~alive.all(axis=0)
        failures = {seeds[place]: made[place] for place in np.flatnonzero(failed)}
        steps = int(told[2][alive].sum())
        found = SeedResults(make, groups, history, failures, steps)
        if not alive.any():  # says what is wrong
            options = dict(epochs=1, episodes_per_epoch=count, verbose=0)
            found.agent(seeds[0]).fit(world, seed=seeds[0], **options)
    return found


def _built(make, seed, world):
    agent = validation.instance("make(seed)", make(seed), agents.Reinforce)
    agent.build_for_env(world)
    if agent._rates:
        raise ValueError(
            "A linear `learning_rate` is set by a callback, and there are none here. "
            "Give the optimizer a schedule: keras.optimizers.schedules.PolynomialDecay."
        )
    return agent


def _partition(seeds):
    """The seeds in equal parts, one for each core, unless they would be few."""
    parts = max(1, min(compiled_rollout.num_threads(), len(seeds) // _FEWEST))
    cuts = [len(seeds) * part // parts for part in range(parts + 1)]
    return [seeds[a:b] for a, b in itertools.pairwise(cuts)]


class _SeedGroup:
    """The weights of `K` agents, stacked, and the program that trains them.

    The first agent is the one whose graphs are used: it plays and learns with the
    weights of each in turn.
    """

    def __init__(self, world, make, seeds, count):
        self.world = world
        self.seeds = seeds
        self._first = first = _built(make, seeds[0], world)
        self.variables, self.likeness = _state(first), _signature(first)
        states = [_numbers(first)]
        for seed in seeds[1:]:
            agent = _built(make, seed, world)
            _expect_alike(self.likeness, _signature(agent))
            _expect_apart(self.variables, _state(agent))
            states.append(_numbers(agent))
        self._stacks = [tf.Variable(np.stack(each)) for each in zip(*states)]
        deciding = first._collector.decision
        places = {id(variable): i for i, variable in enumerate(self.variables)}
        stacks = [self._stacks[places[id(v)]] for v in deciding.variables]
        group_size = first._group_size(world, count, None)
        self._rollout = compiled_rollout.Rollout(
            world, deciding, count, group_size=group_size, stacks=stacks
        )
        keys = tf.TensorSpec((None, len(states), 4, 2), tf.uint32)
        signature = [keys, tf.TensorSpec((len(states),), tf.bool)]
        graph = tf.function(self._trained, input_signature=signature, autograph=False)
        with compiled_rollout.explain_compile_errors():
            self._graph = graph.get_concrete_function()

    def write_to(self, agent, number):
        for variable, stack in zip(_state(agent), self._stacks, strict=True):
            variable.assign(stack[number])

    def counters(self):
        """`[K, 3]`: how many updates, episodes and steps each has learned from."""
        places = [variable is self._first.counters for variable in self.variables]
        return self._stacks[places.index(True)].numpy()

    def train(self, epochs):
        """What each update of each agent says, `[epochs, K, …]`; see `learning`."""
        update, told = 0, []
        alive = np.ones(len(self.seeds), bool)
        members = list(zip(self.seeds, self.counters()[:, 0].tolist(), strict=True))
        while update < epochs:
            most = min(self._first.steps_per_execution, epochs - update)
            keys = [
                [
                    seeding.rollout_keys(seed, "training", first + u)
                    for seed, first in members
                ]
                for u in range(update, update + most)
            ]
            with compiled_rollout.explain_compile_errors():
                made = self._graph(tf.constant(np.array(keys)), tf.constant(alive))
            told.append([part.numpy() for part in made])
            alive = told[-1][0][-1, :, 0] > 0
            update += most
        return [np.concatenate(parts) for parts in zip(*told, strict=True)]

    def _trained(self, keys, alive):
        first, rollout = self._first, self._rollout
        made = first._learner.make_train_step(first.optimizer, rollout)
        count = [rollout.agents * tf.shape(keys)[0]]
        tapes = learner.history_arrays(count[0], rollout.count)

        def one(number, alive, played, tapes):
            update, member = number // rollout.agents, number % rollout.agents
            self._take(member)
            mine = _own(played, member, rollout)
            mine = mine._replace(sound=mine.sound & alive[member])
            told = learner.update_from_rollout(made, mine, keys[update, member, 3])
            self._give(member)
            sound = tf.logical_and(alive[member], told[0][0] > 0)
            alive = tf.tensor_scatter_nd_update(alive, [[member]], [sound])
            return number + 1, alive, played, learner.write_history(tapes, number, told)

        def round_(update, alive, tapes):
            played = rollout(keys[update, :, :3])
            end = (update + 1) * rollout.agents
            _, alive, _, tapes = tf.while_loop(
                lambda number, *_: number < end,
                one,
                (update * rollout.agents, alive, played, tapes),
                parallel_iterations=1,
            )
            return update + 1, alive, tapes

        *_, tapes = tf.while_loop(
            lambda update, *_: update < tf.shape(keys)[0],
            round_,
            (tf.constant(0), alive, tapes),
            parallel_iterations=1,
        )
        shape = [-1, rollout.agents]
        stacked = [tape.stack() for tape in tapes]
        return [tf.reshape(x, [*shape, *x.shape[1:]]) for x in stacked]

    def _take(self, member):
        for variable, stack in zip(self.variables, self._stacks, strict=True):
            variable.assign(stack[member])

    def _give(self, member):
        for variable, stack in zip(self.variables, self._stacks, strict=True):
            stack[member].assign(variable)


def _state(agent):
    """All that an update reads and changes, as Keras variables."""
    state = [*agent.variables]
    for optimizer in _optimizers(agent):
        state += optimizer.variables
    return list({id(variable): variable for variable in state}.values())


def _signature(agent):
    """What agents must have in common, by a name for each thing."""
    parts = {"policy": agent.policy, "head": agent.head, "baseline": agent.baseline}
    layers = {
        f"{name}, layer {number}": (type(layer).__name__, _plain(layer.get_config()))
        for name, part in parts.items()
        for number, layer in enumerate(part._flatten_layers())
        if not isinstance(layer, keras.Model)
    }
    optimizers = {
        f"optimizer {number}": (type(one).__name__, _plain(one.get_config()))
        for number, one in enumerate(_optimizers(agent))
    }
    settings = {name: getattr(agent, name) for name in config.AGENT}
    settings["entropy_coef"] = keras.saving.serialize_keras_object(agent.entropy_coef)
    settings["steps_per_execution"] = agent.steps_per_execution
    adapted = models.adapted_layers(*agent._models)
    settings["statistics of `adapt`"] = [(name, x.tolist()) for name, x in adapted]
    settings["weights"] = [(tuple(v.shape), v.dtype) for v in _state(agent)]
    return {**settings, **layers, **optimizers}


def _plain(config):
    """A configuration without what may differ: names, models, how weights begin."""
    if isinstance(config, dict):
        return {
            key: _plain(value)
            for key, value in config.items()
            if key not in ("name", "seed", "model", "layer", "layers")
            and not key.endswith("initializer")
            and not (key == "learning_rate" and isinstance(value, float))
        }
    if isinstance(config, (list, tuple)):
        return [_plain(value) for value in config]
    return config


def _expect_alike(ours, theirs):
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                "`make` must give agents that are alike but for their weights. They "
                f"differ in {name}. Expected, as the first seed has it: "
                f"{ours.get(name)}. Received: {theirs.get(name)}"
            )


def _expect_apart(ours, theirs):
    known = {id(variable) for variable in ours}
    for variable in theirs:
        if id(variable) in known:
            raise ValueError(
                "`make` must build new models, parts and optimizers for each seed. Two "
                f"seeds share the variable {variable.path!r}"
            )


def _optimizers(agent):
    found = agent.optimizer, getattr(agent.baseline, "optimizer", None)
    return [optimizer for optimizer in found if optimizer is not None]


def _numbers(agent):
    return [variable.numpy() for variable in _state(agent)]


def _own(played, member, rollout):
    """What one of the agents played."""
    begin = member * rollout.count
    episodes = records.select_episodes(played.episodes, begin, begin + rollout.count)
    mine = slice(begin, begin + rollout.count)
    return compiled_rollout.RolloutResult(
        episodes, played.returns[mine], played.sound[mine]
    )


def _history(figures, returns, lengths, _):
    """`[epochs, K]` for each log key."""
    alive = figures[:, :, 0] > 0
    logs = dict(
        zip(train_step.METRICS, np.moveaxis(figures[:, :, 1:], 2, 0), strict=True)
    )
    told = [
        [episode_statistics.metrics(*both) for both in zip(*of_update, strict=True)]
        for of_update in zip(returns, lengths, strict=True)
    ]
    for name in told[0][0]:
        if name not in logs:
            logs[name] = np.array([[one[name] for one in row] for row in told])
    return {name: np.where(alive, x, np.nan) for name, x in logs.items()}
