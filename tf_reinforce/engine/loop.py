"""The epoch loop of `fit`, with its Keras callbacks."""

import contextlib
import re

import keras

from tf_reinforce.callbacks import episodes as episode_callbacks
from tf_reinforce.engine import learner_processes
from tf_reinforce.engine import recorder
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation

# The log keys that a callback with `mode="auto"` maximizes or minimizes.
_MAXIMIZED = re.compile("(val_)?(episode_return(_min|_max)?|success)").fullmatch
_MINIMIZED = re.compile("(val_)?(value_loss|gradient_norm)").fullmatch
END = "end_env_steps"  # a parameter of callbacks: the steps at which training ends
# Arguments of `fit` that describe a training, beside `config.RESULT_OPTIONS`.
_DESCRIBING = "env", "env_kwargs", "initial_epoch", "seed"
_MAX_UPDATES_PER_CALL = 10_000

# These callbacks read or change the agent after each update, before the next one.
_EVERY_UPDATE = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
    keras.callbacks.TensorBoard,
)


def run_loop(agent, envs, given, options, callbacks, validator, run):
    """Makes updates until the budget is spent, and calls the callbacks.

    Args:
        agent: `Reinforce`, which the callbacks receive.
        envs: `environments.Environments`.
        given: Dict of the arguments of `fit`, with a checked seed.
        options: `config.FitOptions`.
        callbacks: List of Keras callbacks. One with a method `updates_until_due` is
            asked, with the number of the epoch that begins, how many updates (at least 1)
            may follow in one call of TensorFlow before it reads the agent.
        validator: `validation.Validation`, or `None`.
        run: `run_directory.RunDirectory`, or `None` to record nothing.

    Returns:
        Keras' `History`.

    Raises:
        KeyboardInterrupt, interruption.Terminated: If a signal has arrived while
            checkpoints are recorded, after the last one was written.
    """
    epochs, steps, epoch = options.epochs, options.steps, given["initial_epoch"]
    agent.stop_training = False
    processes = learner_processes.get(agent._distribute_strategy)
    callbacks = CallbackList(agent, processes, callbacks, options, given["verbose"])
    optimizer, made = _optimizer_steps(agent)
    progress, record = recorder.Progress(epoch, agent.env_steps, made), _Unrecorded()
    if run is not None:
        settings = {name: given[name] for name in _DESCRIBING}
        record = recorder.of_agent(run, agent, callbacks.callbacks, settings, options)
        progress = record.restore(progress)
    end = steps and progress.first_step + steps
    known = {"initial_epoch": progress.epoch, END: end, "validates": bool(validator)}
    callbacks.set_params({**callbacks.params, **known})
    callbacks.on_train_begin()
    record.restore_callbacks()
    # Set by Keras' BackupAndRestore, which may also have restored counters.
    progress.epoch, agent._initial_epoch = agent._initial_epoch or progress.epoch, None
    callbacks.facts = {"number of epochs": progress.epoch}

    with processes.explain_lost(), record.stop, callbacks.notified_of_errors():
        while not _has_ended(agent, processes, record, callbacks) and (
            progress.epoch < epochs if end is None else agent.env_steps < end
        ):
            # A callback may restore an earlier state of the agent, with its counters.
            rates = end or agent.updates + epochs - progress.epoch, end is not None
            agent.trainer.set_rates(*rates)  # which a callback may then replace
            callbacks.begin_epoch(progress.epoch)
            limit = callbacks.updates_until_due(progress.epoch, epochs, validator)
            limits = limit, end and end - agent.env_steps
            parts = options.collection, limits, callbacks.notify_collected, rates
            with record.checkpoint_if_interrupted(progress):
                updates = agent.trainer.train(envs, given["seed"], *parts)
            for number, update in enumerate(updates):
                if number:
                    callbacks.begin_epoch(progress.epoch)
                callbacks.end_epoch(progress.epoch, *update, validator)
                progress.epoch += 1
            record.write_if_due(progress)
        progress.stopped = agent.stop_training
        record.finish(progress, validator, callbacks)
    if _optimizer_steps(agent) != (optimizer, progress.first_optimizer_step):
        optimizers.finalize(agent.optimizer)
    callbacks.on_train_end(callbacks.logs)
    record.raise_if_interrupted()
    return agent.history


class _Unrecorded:
    """Takes the place of a `recorder.Recorder` in a training without checkpoints."""

    signal, stop = 0, contextlib.nullcontext()
    checkpoint_if_interrupted = staticmethod(contextlib.nullcontext)

    def _ignore(self, *_):
        pass

    restore_callbacks = interrupt = write_if_due = finish = _ignore
    raise_if_interrupted = _ignore


def _optimizer_steps(agent):
    return agent.optimizer, int(agent.optimizer.iterations.numpy())


def _has_ended(agent, processes, record, callbacks):
    """Returns whether a callback or a signal of any process has ended the training."""
    agent.stop_training, signal = processes.agree_on_end(
        agent.stop_training, record.signal, lambda: callbacks.facts
    )
    record.interrupt(signal)
    return agent.stop_training or record.signal != 0


class CallbackList(keras.callbacks.CallbackList):
    """A Keras callback list that also notifies `EpisodeCallback`s, epoch by epoch.

    Args:
        agent, callbacks, options: As in `run_loop`.
        verbose: As in `fit`.
        processes: Result of `learner_processes.get`, or `None` without a strategy.

    Attributes:
        notify_collected: Function that receives the episodes of an update, or `None`.
        logs: Dict, the logs of the last epoch.
        facts: Dict of what must be equal in all processes: all logs but the speed.
    """

    def __init__(self, agent, processes, callbacks, options, verbose):
        swaps = [x for x in callbacks if isinstance(x, keras.callbacks.SwapEMAWeights)]
        if options.epochs is None and any(callback.swap_on_epoch for callback in swaps):
            raise ValueError(
                "SwapEMAWeights(swap_on_epoch=True) needs `epochs` instead of `steps`. "
                f"Received: steps={options.steps}"
            )
        own = list(processes.own_callbacks(callbacks))
        for callback in own:
            if getattr(callback, "mode", None) == "auto":
                for mode, applies in (("max", _MAXIMIZED), ("min", _MINIMIZED)):
                    if applies(callback.monitor):
                        callback.mode = mode
        verbose = 1 if verbose == "auto" else int(verbose)
        shown = dict(verbose=verbose, epochs=options.epochs, steps=1)
        shown["info_keys"] = options.info_keys
        super().__init__(own, add_history=True, model=agent, **shown)
        self._of_all_processes = callbacks
        self.notify_collected = self._notifier("on_episodes_collected")
        self._notify_end = self._notifier("on_episode_end")
        self.logs, self.facts = {}, {}

    def begin_epoch(self, epoch):
        self.on_epoch_begin(epoch)
        self.on_train_batch_begin(0)

    def end_epoch(self, epoch, logs, episodes, validator):
        """Reports the episodes and logs of an update, and validates if it is due.

        Args:
            epoch: Int, the number of the epoch that ends.
            logs, episodes: As in `Trainer.train`.
            validator: As in `run_loop`.
        """
        logs = self._with_failures(logs, "success")
        for number, episode in episodes if self._notify_end is not None else ():
            self._notify_end(number, self._with_failures(episode, "success"))
        self.facts = {k: x for k, x in logs.items() if k != "steps_per_second"}
        self.on_train_batch_end(0, logs)
        if validator and (validator.is_due(epoch + 1) or self._ask_for_validation(logs)):
            self.on_test_begin()
            metrics = validator.metrics(logs)
            self.on_test_end(metrics)
            logs = {**logs, **{f"val_{name}": x for name, x in metrics.items()}}
            logs = self._with_failures(logs, "val_success")
        self.on_epoch_end(epoch, logs)
        self.logs = logs

    def _ask_for_validation(self, logs):
        asking = (getattr(x, "validation_is_due", None) for x in self._of_all_processes)
        return any(is_due(logs) for is_due in asking if is_due is not None)

    def _with_failures(self, logs, key):
        """Adds a success rate of 0 to logs without one, if earlier epochs had one.

        Some environments report success only when the goal is reached. In an epoch of
        failures, they report nothing.
        """
        reported = key in logs or key not in self.model.history.history
        return logs if reported else {**logs, key: 0.0}

    @contextlib.contextmanager
    def notified_of_errors(self):
        """Calls `on_train_error` if the `with` block raises an error."""
        try:
            yield
        except BaseException:
            if (notify := self._notifier("on_train_error")) is not None:
                notify()
            raise

    def updates_until_due(self, epoch, epochs, validator):
        """Returns how many updates one call of TensorFlow may make.

        All processes must make equal calls, so the callbacks of other processes count
        too.

        Args:
            epoch: Int, the number of the epoch that begins.
            epochs: Int, the number of the last epoch, or `None`.
            validator: As in `run_loop`.
        """
        limit = _MAX_UPDATES_PER_CALL
        limit = limit if epochs is None else min(epochs - epoch, limit)
        span = range(1, limit if validator else 1)
        result = next((n for n in span if validator.is_due(epoch + n)), limit)
        for callback in self._of_all_processes:
            collects = _own_method(callback, "on_episodes_collected") is not None
            if collects or isinstance(callback, _EVERY_UPDATE):
                return 1
            if (method := getattr(callback, "updates_until_due", None)) is not None:
                name = f"{type(callback).__name__}.updates_until_due({epoch})"
                result = min(result, validation.positive_int(name, method(epoch)))
        return result

    def _notifier(self, name):
        """Returns a function that calls one method of all callbacks that override it.

        Args:
            name: String, the name of a method of `EpisodeCallback`.

        Returns:
            Function with the method's arguments, or `None` if no callback overrides it.
        """
        methods = [_own_method(callback, name) for callback in self.callbacks]
        methods = [method for method in methods if method is not None]

        def notify(*args):
            for method in methods:
                method(*args)

        return notify if methods else None


def _own_method(callback, name):
    """Returns a method that overrides that of `EpisodeCallback`, or `None`."""
    method = getattr(callback, name, None)
    default = getattr(episode_callbacks.EpisodeCallback, name)
    return None if getattr(method, "__func__", method) is default else method
