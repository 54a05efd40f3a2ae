"""Trains on an Atari game, with small gray images as observations.

    pip install ".[atari]"
    python examples/atari.py [epochs]

`SmallPong-v0` has the wrappers of Gymnasium that Atari games need: `AtariPreprocessing`
(an action for four frames, gray images of 42 x 42 pixels), `StickyAction` and
`FrameStackObservation`. An episode is a whole game until one side has 21 points.
The settings are not tuned: docs/ecosystem.md.
"""

import sys

import tf_reinforce as tfr

ENV = "tf_reinforce.atari:SmallPong-v0"

agent = tfr.Reinforce.for_env(
    ENV,
    gae_lambda=0.95,
    hidden=(128,),
    learning_rate=2e-4,
    baseline={"kind": "value", "learning_rate": 5e-4, "minibatch_size": 256},
    scale_advantages="batch",
    mean_over="steps",
    minibatch_size=256,
    entropy_coef=0.01,
)
agent.summary(expand_nested=True)
agent.fit(
    ENV, epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 300, episodes_per_epoch=4
)
print(agent.evaluate(ENV, episodes=2, deterministic=False)["episode_return"])
