"""Runs epochs around Keras callbacks."""

import keras

from tf_reinforce import optimizers
from tf_reinforce import validation
from tf_reinforce.callbacks import episodes as episode_callbacks

# A monitoring callback left at `mode="auto"` cannot know which way is up.
HIGHER_IS_BETTER = (
    "episode_return",
    "episode_return_min",
    "episode_return_max",
    "success",
)
LOWER_IS_BETTER = ("value_loss", "gradient_norm")

# How long to train, and how much to collect for each update: two ways to say either.
BUDGET = ("epochs", "steps", "episodes_per_epoch", "steps_per_epoch")
ALIKE = BUDGET[:2], BUDGET[2:]

_MAX_UPDATES_PER_CALL = 10_000  # updates in one call, at the most

# These work on the agent as it is after each update, which is then made by itself.
_EVERY_UPDATE = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
)


def merge_options(defaults, given):
    """What was given over the defaults: of two ways to say one thing, the one given.

    Example:

    >>> merge_options({"epochs": 5, "num_envs": 4}, {"epochs": None, "steps": 100})
    {'num_envs': 4, 'steps': 100}
    """
    given = {name: value for name, value in given.items() if value is not None}
    silent = {name for pair in ALIKE if given.keys() & set(pair) for name in pair}
    kept = {name: value for name, value in defaults.items() if name not in silent}
    return {**kept, **given}


def check_budget(epochs, steps, episodes_per_epoch, steps_per_epoch):
    """Checks how long to train and how much to collect per epoch.

    Returns:
        The four numbers; of each pair exactly one is `None`.

    Raises:
        ValueError: when both or neither of `epochs` and `steps` are given, when both
            `episodes_per_epoch` and `steps_per_epoch` are, or one is below 1.
    """
    if (epochs is None) == (steps is None):
        raise ValueError(
            "Give either `epochs` (updates) or `steps` (environment steps). "
            f"Received: epochs={epochs!r}, steps={steps!r}"
        )
    if episodes_per_epoch is not None and steps_per_epoch is not None:
        raise ValueError(
            "Give either `episodes_per_epoch` or `steps_per_epoch`. Received: "
            f"episodes_per_epoch={episodes_per_epoch!r}, "
            f"steps_per_epoch={steps_per_epoch!r}"
        )
    if episodes_per_epoch is None and steps_per_epoch is None:
        episodes_per_epoch = 16
    given = dict(
        epochs=epochs,
        steps=steps,
        episodes_per_epoch=episodes_per_epoch,
        steps_per_epoch=steps_per_epoch,
    )
    return [
        x if x is None else validation.positive_int(name, x) for name, x in given.items()
    ]


def check_validation(episodes, freq):
    """Refuses counts of validation episodes and epochs below 1."""
    validation.positive_int("validation_episodes", episodes)
    for epoch in freq if isinstance(freq, (list, tuple, set)) else [freq]:
        validation.positive_int("validation_freq", epoch)


class CallbackList(keras.callbacks.CallbackList):
    """Keras' list, which also tells those who listen of the episodes."""

    def hearing(self, name):
        """A function that tells those who hear of `name`; `None` where nobody does."""
        silent = getattr(episode_callbacks.EpisodeCallback, name)
        found = [getattr(callback, name, None) for callback in self.callbacks]
        hearing = [x for x in found if getattr(x, "__func__", x) not in (None, silent)]

        def tell(*given):
            for hear in hearing:
                hear(*given)

        return tell if hearing else None


def run_loop(
    agent, epoch, validate, callbacks, *, epochs, steps, initial_epoch, freq, verbose
):
    """Calls `epoch` until the budget is spent, and tells the callbacks.

    Args:
        agent: `keras.Model` the callbacks work on.
        epoch: Function that makes an update, or several; returns for each its logs and
            `(episode, logs)` for each episode. Its arguments are a function to be
            called with the `Episodes` and logs before the update is made, or `None`;
            how many updates it may make, and how many steps are left, or `None`.
        validate: Function without arguments that returns logs, or `None`.
        callbacks: List of Keras callbacks.
        epochs: Int, the number of the last epoch, or `None`.
        steps: Int, environment steps instead, or `None`.
        initial_epoch: Int, the number of the first epoch.
        verbose: What callbacks are told, 0 or 1; `"auto"` is 1.
        freq: Int n, or list of ints: validation after every n-th epoch, or after
            these (counted from 1, as in Keras).

    Returns:
        Keras' `History`.
    """
    _expect_last_epoch(callbacks, epochs, steps)
    callbacks = CallbackList(
        _set_monitor_modes(callbacks),
        add_history=True,
        model=agent,
        verbose=1 if verbose == "auto" else int(verbose),
        epochs=epochs,
        steps=1,
    )
    prompt = any(isinstance(callback, _EVERY_UPDATE) for callback in callbacks.callbacks)
    agent.stop_training = False
    before = agent.env_steps
    since = optimizers.progress(agent.optimizer)
    callbacks.on_train_begin()
    collected, ended = map(callbacks.hearing, ("on_episodes_collected", "on_episode_end"))
    # BackupAndRestore says here where to go on.
    current, agent._initial_epoch = agent._initial_epoch or initial_epoch, None
    logs, left = {}, steps and steps - (agent.env_steps - before)

    def goes_on():
        return current < epochs if steps is None else left > 0

    def begin():
        callbacks.on_epoch_begin(current)
        callbacks.on_train_batch_begin(0)

    while not agent.stop_training and goes_on():
        begin()
        most = 1 if prompt else _until(current, epochs, validate and freq)
        for number, (logs, episodes) in enumerate(epoch(collected, most, left)):
            if number:
                begin()
            if ended is not None:
                for episode in episodes:
                    ended(*episode)
            if steps is not None:
                left = steps - int(logs["env_steps"] - before)
            callbacks.on_train_batch_end(0, logs)
            if validate is not None and _due(current + 1, freq):
                logs = {**logs, **_validated(callbacks, validate)}
            callbacks.on_epoch_end(current, logs)
            current += 1
    optimizers.finalize(agent.optimizer, since)
    callbacks.on_train_end(logs)
    return agent.history


def _expect_last_epoch(callbacks, epochs, steps):
    swaps = [x for x in callbacks if isinstance(x, keras.callbacks.SwapEMAWeights)]
    if epochs is None and any(callback.swap_on_epoch for callback in swaps):
        raise ValueError(
            "SwapEMAWeights(swap_on_epoch=True) has to know which epoch is the last, and "
            "`steps` leaves that open. Expected: `epochs` in place of `steps`. Received: "
            f"steps={steps}"
        )


def _validated(callbacks, validate):
    callbacks.on_test_begin()
    figures = validate()
    callbacks.on_test_end(figures)
    return {f"val_{name}": figure for name, figure in figures.items()}


def _until(current, epochs, freq):
    """How many updates may follow before somebody has to look."""
    most = _MAX_UPDATES_PER_CALL if epochs is None else epochs - current
    if freq:
        ahead = range(1, most + 1)
        most = next((n for n in ahead if _due(current + n, freq)), most)
    return min(most, _MAX_UPDATES_PER_CALL)


def _due(epoch, freq):
    return epoch in freq if isinstance(freq, (list, tuple, set)) else epoch % freq == 0


def _set_monitor_modes(callbacks):
    for callback in callbacks:
        if getattr(callback, "mode", None) == "auto":
            name = callback.monitor.removeprefix("val_")
            if name in HIGHER_IS_BETTER or name in LOWER_IS_BETTER:
                callback.mode = "max" if name in HIGHER_IS_BETTER else "min"
    return list(callbacks)
