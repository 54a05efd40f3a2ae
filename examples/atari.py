"""Trains on Pong, with small gray images as observations.

    pip install -e ".[atari]"
    python examples/atari.py [steps]    # without steps: 4,000,000, less than an hour

`SmallPong-v0` has the wrappers of Gymnasium that Atari games need: `AtariPreprocessing`
(an action for four frames, gray images of 42 x 42 pixels), `StickyAction` and
`FrameStackObservation`. An episode is a whole game until one side has 21 points. The
preset and its results are described in docs/ecosystem.md.
"""

import sys

import tf_reinforce as tfr

ENV = "tf_reinforce.atari:SmallPong-v0"

agent = tfr.Reinforce.for_env(ENV, preset="SmallPong-v0")
agent.summary(expand_nested=True)
agent.fit(ENV, steps=int(sys.argv[1]) if len(sys.argv) > 1 else None)
print(agent.evaluate(ENV, episodes=2)["episode_return"])
