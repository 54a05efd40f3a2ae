"""Shared pieces of tests: examples, cells, requests and programs."""

import importlib.util
import pathlib
import types

import keras
import toy_envs

from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import environments


def example(name):
    """Returns one of the example scripts as a module."""
    path = pathlib.Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Worker processes import `toy_envs`, but not this file, which imports TensorFlow.
Clock = toy_envs.Clock
Bandit = toy_envs.Bandit
Corridor = toy_envs.Corridor
Lengths = toy_envs.Lengths
Reporting = toy_envs.Reporting
Misbehaving = toy_envs.Misbehaving
Observing = toy_envs.Observing


@keras.saving.register_keras_serializable("toys")
class LearnedStart(keras.layers.SimpleRNNCell):
    """A simple recurrent cell whose initial state is a weight."""

    def build(self, inputs_shape):
        super().build(inputs_shape)
        initial = keras.initializers.RandomNormal(stddev=1.0, seed=5)
        self.start = self.add_weight(
            name="start", shape=(self.units,), initializer=initial
        )

    def get_initial_state(self, batch_size=None):
        if not self.built:
            return super().get_initial_state(batch_size)
        return [keras.ops.tile(self.start[None], (batch_size, 1))]


def with_learned_start(inputs, outputs, seed=3, dtype="float32"):
    """Returns a recurrent policy whose initial state is a weight."""
    initial = keras.initializers.GlorotUniform(seed)
    cell = LearnedStart(
        5, kernel_initializer=initial, recurrent_initializer=initial, dtype=dtype
    )
    return keras.Sequential(
        [
            keras.Input((None, inputs), dtype=dtype),
            keras.layers.RNN(cell, return_sequences=True, dtype=dtype),
            keras.layers.Dense(outputs, kernel_initializer=initial, dtype=dtype),
        ]
    )


def request(episodes=None, steps=None, *, stream="training", **options):
    """Returns a request for the episodes of update 0 with seed 0."""
    key = seeding.StreamKey(0, stream, 0)
    return environments.CollectionRequest(key, episodes, steps, **options)


def rollouts(agent):
    """Returns the programs of the compiled engine, latest last."""
    programs = agent.trainer.programs
    return [program for key, program in programs.items() if key[0] == "rollout"]


def acting_program(agent, observation_space, deterministic=False):
    """Returns a new acting program of an agent."""
    actor = agent.trainer.actor
    inputs = environments.example_inputs(actor, observation_space, deterministic)
    program = environments.ActingProgram(actor, inputs, deterministic)
    program.variables = actor.variables
    return program


def set_options(estimator, **options):
    """Sets options of an estimator, unchecked."""
    options = {**vars(estimator.options), **options}
    estimator.options = types.SimpleNamespace(**options)


def rewinding(agent, env):
    """Returns a function that restores the variables and sets `steps_per_execution`.

    The agent's programs stay compiled.
    """
    agent.build_for_env(env)
    parts = [agent, agent.optimizer, getattr(agent.baseline, "optimizer", None)]
    start = [(v, v.numpy()) for part in parts if part is not None for v in part.variables]

    def rewind(steps_per_execution=1):
        for variable, value in start:
            variable.assign(value)
        agent.steps_per_execution = steps_per_execution

    return rewind
