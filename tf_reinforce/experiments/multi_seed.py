"""Training of several seeds in one program."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from tf_reinforce import agent as agents
from tf_reinforce import envs
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import seeding
from tf_reinforce.engine import agent_state
from tf_reinforce.engine import checkpoints
from tf_reinforce.engine import recorder
from tf_reinforce.engine.collect import make_envs
from tf_reinforce.engine.collect import xla_rollout
from tf_reinforce.engine.update import program as update_program
from tf_reinforce.engine.update import train_step
from tf_reinforce.support import compilation
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation

_POLL_SECONDS = 0.1  # between checks for signals and due checkpoints
_MIN_SEEDS = 8  # per program: fewer are not worth compiling one


class SeedResults:
    """What `train_seeds` returns for its `K` agents.

    Attributes:
        seeds: List of `K` ints.
        history: Dict from log keys, except `steps_per_second`, to `[epochs, K]` float64
            arrays. After an update that is not finite, all further logs of its agent are
            NaN, beginning with this update.
        failures: Dict from seeds to the index of the first update that was not finite.
            Such an update leaves the agent unchanged. To see the cause,
            `agent(seed).fit(env, seed=seed)` repeats it and raises the error.
        env_steps: Int, the environment steps that all agents together learned from.
    """

    def __init__(self, make, programs, history, failures, env_steps):
        self.seeds = [seed for program in programs for seed in program.seeds]
        self.history = history
        self.failures = failures
        self.env_steps = env_steps
        self._make = make
        self.programs = programs

    def agent(self, seed: int) -> Any:
        """Returns the trained agent of one seed, which can continue training."""
        if seed not in self.seeds:
            raise ValueError(f"`seed` must be one of {self.seeds}. Received: {seed!r}")
        program = next(program for program in self.programs if seed in program.seeds)
        agent = _build_agent(self._make, seed, program.batched_env)
        program.load(program.seeds.index(seed), agent_state.variables(agent))
        if seed not in self.failures:
            optimizers.finalize(agent.optimizer)
        return agent


def train_seeds(
    make: Callable[[int], Any],
    env: Any,
    seeds: Sequence[int],
    *,
    epochs: int,
    episodes_per_epoch: int = 16,
    max_episode_steps: int | None = None,
    resume: Any = None,
) -> SeedResults:
    """Trains one agent per seed, all at once on all cores.

    Training many agents at once is faster because they act together: their weights are
    stacked, and one batched matrix product computes the outputs of all policies. Each
    agent is still updated separately. Its result equals that of `make(seed).fit(env,
    epochs=…, seed=seed)`, except for the rounding of batched matrix products.

    Call `tf.config.threading.set_intra_op_parallelism_threads(1)` when the process
    starts. The training is then faster, because every core runs its own program and needs
    only one thread for each TensorFlow operation.

    Args:
        make: Function from a seed to a compiled `Reinforce`. The agents may differ only
            in weights, optimizer state and learning rate.
        env: `tfr.envs.TensorEnv`, shared by all agents.
        seeds: List of distinct ints.
        epochs: Int, the number of updates of each agent. If they are compiled with
            `steps_per_execution=U`, one TensorFlow call makes U of them.
        episodes_per_epoch: Int, the number of episodes per update.
        max_episode_steps: Int, the time limit in steps, by default the environment's.
        resume: Path of a folder for checkpoints, or `tfr.Checkpoints`, as in `fit`.

    Returns:
        `SeedResults`.

    Raises:
        ValueError: If a policy layer cannot be stacked, for example a convolution, or
            agents differ in anything but the above.
        EnvironmentFault, FloatingPointError: If no agent could make its first update.

    Example:

    >>> from tf_reinforce import envs
    >>> env = envs.Bandit([0.0, 1.0])
    >>> make = lambda seed: agents.Reinforce.for_env(env, hidden=(4,), seed=seed)
    >>> results = train_seeds(make, env, range(3), epochs=20)
    >>> results.history["episode_return"].shape
    (20, 3)
    >>> results.agent(2).updates
    20
    >>> results.env_steps  # 16 episodes of one step for each update
    960
    """
    validation.instance("make", make, Callable)
    received = seeds if isinstance(seeds, Iterable) else ()
    checked = [validation.check_seed(seed) for seed in received]
    if not checked or len(set(checked)) < len(checked):
        raise ValueError(
            f"`seeds` must be a list of ints that all differ. Received: seeds={seeds!r}"
        )
    seeds = checked
    epochs = validation.positive_int("epochs", epochs)
    num_episodes = validation.positive_int("episodes_per_epoch", episodes_per_epoch)
    if not isinstance(env, envs.TensorEnv):
        raise ValueError(
            "`train_seeds` requires a `TensorEnv`, for example "
            f"`tfr.envs.make('CartPole-v1')`. Received: {env!r}"
        )
    options: dict[str, Any] = dict(max_episode_steps=max_episode_steps)
    opened = checkpoints.open_checkpoints(resume) if resume else contextlib.nullcontext()
    with opened as folder, make_envs.open_envs(env, 1, **options) as batched_env:
        checkpoint = None if folder is None else folder.newest()
        partition, programs = _partition(seeds, checkpoint), []
        for part in partition:
            program = _SeedProgram(batched_env, make, part, num_episodes)
            programs.append(program)
            if program is not programs[0]:
                _check_alike(programs[0].first_agent, program.first_agent)
        settings = {"env": type(env).__name__, "partition": partition}
        settings.update(episodes_per_epoch=num_episodes, **options)
        header = recorder.describe(programs[0].first_agent, settings)
        if checkpoint is not None:
            recorder.check_same_training(checkpoint.path, checkpoint.header, header)
            for program, state in zip(programs, checkpoint.state, strict=True):
                program.restore(state)
        _train(programs, epochs, folder, header)
        results = _results(make, programs)
        if not results.env_steps:  # `fit` raises an error that names the cause
            options = dict(epochs=1, episodes_per_epoch=num_episodes, verbose=0)
            results.agent(seeds[0]).fit(batched_env, seed=seeds[0], **options)
    return results


def _train(programs, epochs, folder, header):
    """Trains all programs, pausing them for checkpoints.

    Programs pause between two updates, and not necessarily after the same number.

    Args:
        programs: List of `_SeedProgram`.
        epochs: Int, the number of updates of each program.
        folder: Open `checkpoints.Checkpoints`, or `None`.
        header: Dict of JSON values that describe the training.
    """
    if folder is None:
        _run(programs, epochs, lambda: False)
        return
    if (updates := max(p.num_updates for p in programs)) > epochs:
        raise ValueError(
            f"`epochs` must be at least {updates}, the number of updates in the "
            f"checkpoint. Received: epochs={epochs}"
        )
    with folder.graceful_stop() as stop:
        while (updates := min(p.num_updates for p in programs)) < epochs:
            end = min(epochs, updates + (folder.every_updates or epochs))
            _run(programs, end, lambda: stop.received or folder.time_is_due)
            total = sum(program.num_updates for program in programs)
            folder.write(total, header, [program.state() for program in programs])
            text = f"To continue, start again: {folder.path} has a checkpoint"
            stop.raise_if_received(f"interrupted. {text}")


def _run(programs, epochs, is_over):
    """Trains each program in a thread, until `epochs` updates or until `is_over()`."""
    stop = threading.Event()
    with futures.ThreadPoolExecutor(len(programs)) as threads:
        tasks = [threads.submit(program.train, epochs, stop) for program in programs]
        try:
            while futures.wait(tasks, timeout=_POLL_SECONDS).not_done:
                if is_over() or any(task.done() and task.exception() for task in tasks):
                    break
        finally:  # also Ctrl-C
            stop.set()
        for task in tasks:
            task.result()


def _results(make, programs):
    """Returns the `SeedResults` of programs that have made all updates."""
    parts = zip(*(program.outputs() for program in programs), strict=True)
    metrics, returns, lengths, _ = (np.concatenate(arrays, axis=1) for arrays in parts)
    finite = metrics[:, :, 0] > 0
    seeds = [seed for program in programs for seed in program.seeds]
    updates = [n for program in programs for n in program.counters()[:, 0].tolist()]
    failed = np.flatnonzero(~finite.all(axis=0))
    failures = {seeds[index]: updates[index] for index in failed}
    history, steps = _history(metrics, returns, lengths), int(lengths[finite].sum())
    return SeedResults(make, programs, history, failures, steps)


def _build_agent(make, seed, batched_env):
    agent = validation.instance("make(seed)", make(seed), agents.Reinforce)
    agent.build_for_env(batched_env)
    if agent._learning_rates:
        raise ValueError(
            "A linear `learning_rate` is set by a callback, which `train_seeds` does not "
            "run. Use keras.optimizers.schedules.PolynomialDecay instead."
        )
    return agent


def _partition(seeds, checkpoint):
    """Splits the seeds into nearly equal parts, at most one per core.

    A checkpoint keeps the parts it was written with.
    """
    if checkpoint is not None:
        partition = checkpoint.header["settings"].get("partition", [])
        if list(itertools.chain(*partition)) == seeds:
            return partition  # else the header of this training will be another one
    parts = max(1, min(xla_rollout.num_threads(), len(seeds) // _MIN_SEEDS))
    return [part.tolist() for part in np.array_split(np.array(seeds), parts)]


class _SeedProgram:
    """The stacked weights of `K` agents, and the program that trains them.

    The traced function contains only the variables of the first agent. To update another
    agent, the function copies that agent's weights into these variables, and back
    afterwards.
    """

    def __init__(self, batched_env, make, seeds, num_episodes):
        self.batched_env = batched_env
        self.seeds = seeds
        self.first_agent = first = _build_agent(make, seeds[0], batched_env)
        self._variables = agent_state.variables(first)
        states = [[variable.numpy() for variable in self._variables]]
        for seed in seeds[1:]:
            agent = _build_agent(make, seed, batched_env)
            _check_alike(first, agent)
            states.append([x.numpy() for x in agent_state.variables(agent)])
        self._stacks = [tf.Variable(np.stack(values)) for values in zip(*states)]
        stacks = {id(v): x for v, x in zip(self._variables, self._stacks, strict=True)}
        self._counters = stacks[id(first.counters)]  # [K, 3]: updates, episodes, steps
        self._outputs = []  # of each call of the graph
        self._first_updates = self.counters()[:, 0].tolist()
        actor = first.trainer.actor
        request = first.trainer.training_request(batched_env, seeds[0], num_episodes)
        self.rollout = xla_rollout.Rollout(
            batched_env,
            actor,
            request.episodes,
            group_size=request.group_size,
            stacked_weights=[stacks[id(v)] for v in actor.variables],
        )
        keys = tf.TensorSpec((None, len(seeds), 4, 2), tf.uint32)
        signature = [keys, tf.TensorSpec((len(seeds),), tf.bool)]
        graph = tf.function(self._updates, input_signature=signature, autograph=False)
        with xla_rollout.explain_compile_errors():
            self._graph = graph.get_concrete_function()
        compilation.release(self._graph.graph)

    def load(self, index, variables=None):
        """Assigns the weights of agent `index` to the first agent, or to `variables`."""
        values = [stack[index] for stack in self._stacks]
        optimizers.assign(variables or self._variables, values)

    def counters(self):
        """Returns the `[K, 3]` numbers of updates, episodes and steps."""
        return self._counters.numpy()

    @property
    def num_updates(self):
        """Returns how many updates the program has made of each agent."""
        return sum(len(arrays[0]) for arrays in self._outputs)

    def train(self, epochs, stop):
        """Trains until each agent has made `epochs` updates, or `stop` is set.

        Args:
            epochs: Int, including earlier updates.
            stop: `threading.Event`, read after each call of the graph.
        """
        while self.num_updates < epochs and not stop.is_set():
            update = self.num_updates
            num_updates = min(self.first_agent.steps_per_execution, epochs - update)
            keys = [*map(self._keys, range(update, update + num_updates))]
            active = np.ones(len(self.seeds), bool)
            if self._outputs:
                active = self._outputs[-1][0][-1, :, 0] > 0
            with xla_rollout.explain_compile_errors():
                tensors = self._graph(tf.constant(np.array(keys)), tf.constant(active))
            self._outputs.append([tensor.numpy() for tensor in tensors])

    def _keys(self, update):
        """Returns the `rollout_keys` of all agents for one update of this training."""
        firsts = zip(self.seeds, self._first_updates, strict=True)
        return [seeding.rollout_keys(x, "training", n + update) for x, n in firsts]

    def outputs(self):
        """Returns the outputs of all updates, `[updates, K, …]` arrays.

        Their meanings are those of `update_program.run_updates`.
        """
        return [np.concatenate(parts) for parts in zip(*self._outputs, strict=True)]

    def state(self):
        """Returns what a checkpoint stores."""
        outputs = self.outputs() if self._outputs else None
        return {"outputs": outputs, "weights": [stack.numpy() for stack in self._stacks]}

    def restore(self, state):
        """Restores what `state` returned."""
        self._outputs = [] if state["outputs"] is None else [state["outputs"]]
        optimizers.assign(self._stacks, state["weights"])

    def _updates(self, keys, active):
        """Makes U updates of each of the K agents, in the graph.

        Args:
            keys: `[U, K, 4, 2]` uint32, from `seeding.rollout_keys`.
            active: `[K]` bool, False for agents that make no more updates.

        Returns:
            List of `[U, K, …]` tensors, the outputs of all updates.
        """
        step = self.first_agent.trainer.train_step(self.rollout)
        return update_program.run_updates(
            self.rollout, step, keys, active, 2**62, load=self.load, store=self._store
        )

    def _store(self, index):
        """Copies the first agent's weights to the stacked weights of agent `index`."""
        for variable, stack in zip(self._variables, self._stacks, strict=True):
            stack[index].assign(variable)


def _check_alike(first, agent):
    """Raises `ValueError` if agents differ in more than weights, or share a variable."""
    expected, received = agent_state.signature(first), agent_state.signature(agent)
    for name in {**expected, **received}:
        if expected.get(name) != received.get(name):
            raise ValueError(
                "`make` must return agents that differ only in their weights. They "
                f"differ in {name}. Expected, as for the first seed: "
                f"{expected.get(name)}. Received: {received.get(name)}"
            )
    ids = {id(variable) for variable in agent_state.variables(first)}
    for variable in agent_state.variables(agent):
        if id(variable) in ids:
            raise ValueError(
                "`make` must build new models, heads, baselines and optimizers for each "
                f"seed. Two seeds share the variable {variable.path!r}"
            )


def _history(metrics, episode_returns, lengths):
    """Returns a dict from log keys to `[epochs, K]` arrays.

    Args:
        metrics: `[epochs, K, 1 + M]`. The first number is 1 if the update was finite,
            else 0; the M metrics follow.
        episode_returns, lengths: `[epochs, K, B]`, of the B episodes of each update.
    """
    finite = metrics[:, :, 0] > 0
    columns = np.moveaxis(metrics[:, :, 1:], 2, 0)
    logs = dict(zip(train_step.METRICS, columns, strict=True))
    statistics = [
        [episode_statistics.metrics(*pair) for pair in zip(*update, strict=True)]
        for update in zip(episode_returns, lengths, strict=True)
    ]
    for name in statistics[0][0]:
        if name not in logs:
            logs[name] = np.array([[agent[name] for agent in row] for row in statistics])
    return {name: np.where(finite, x, np.nan) for name, x in logs.items()}
