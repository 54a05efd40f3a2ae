"""Searches settings for CartPole-v1 with KerasTuner.

    pip install keras-tuner
    python examples/keras_tuner_search.py [epochs]

The objective is the validation return: the mean return of the greedy policy in episodes
that are not used for training. KerasTuner saves the weights of the best epoch of each
trial, and stores all trials in the folder `search`.
"""

import sys

import keras_tuner

import tf_reinforce as tfr

ENV = "CartPole-v1"
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 30


class AgentSearch(keras_tuner.HyperModel):
    def build(self, hp):
        return tfr.Reinforce.for_env(
            ENV,
            hidden=(hp.Choice("units", [16, 64]),),
            learning_rate=hp.Float("learning_rate", 1e-3, 3e-2, sampling="log"),
            gamma=hp.Choice("gamma", [0.97, 0.99, 1.0]),
        )

    def fit(self, hp, agent, callbacks=(), **kwargs):
        history = agent.fit(
            ENV, epochs=EPOCHS, validation_env=ENV, callbacks=callbacks, verbose=0
        )
        return {"val_episode_return": max(history.history["val_episode_return"])}


tuner = keras_tuner.RandomSearch(
    AgentSearch(),
    objective=keras_tuner.Objective("val_episode_return", direction="max"),
    max_trials=5,
    seed=0,
    directory="search",
    project_name=ENV,
    overwrite=True,
)
tuner.search(verbose=0)
print(tuner.get_best_hyperparameters()[0].values)
(agent,) = tuner.get_best_models()
print(agent.evaluate(ENV, episodes=100)["episode_return"])
