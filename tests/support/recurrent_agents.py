"""Recurrent policies and their agents."""

import keras
import toys

import tf_reinforce as tfr


def policy(layer=keras.layers.GRU, inputs=2, outputs=3, dtype="float32", **kwargs):
    return keras.Sequential(
        [
            keras.Input((None, inputs), dtype=dtype),
            layer(5, return_sequences=True, dtype=dtype, **kwargs),
            keras.layers.Dense(outputs, dtype=dtype),
        ]
    )


def learner(model=None, **settings):
    keras.utils.set_random_seed(0)
    agent = tfr.Reinforce(model or policy(), **settings)
    agent.compile(keras.optimizers.SGD(0.01))
    return agent


def ready(model=None, env=toys.Lengths, **settings):
    """Returns a built agent with weights so large that the state changes the actions."""
    agent = learner(model, **settings)
    agent.build_for_spaces(env().observation_space, env.action_space)
    for weight in agent.policy.trainable_variables:
        weight.assign(2.0 * weight)
    return agent
