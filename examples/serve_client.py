"""Plays an episode with a policy that `serve.py` serves, over one connection.

python examples/serve_client.py ENV [PORT]
"""

import http.client
import json
import os
import sys

import gymnasium as gym
import numpy as np

sys.path.append(os.getcwd())  # for ENV in the form MODULE:ID
name, port = [*(sys.argv[1:] or sys.exit(__doc__)), 8501][:2]
connection = http.client.HTTPConnection("127.0.0.1", int(port))


def plain(x):
    """Returns an observation, which may be nested, as JSON values."""
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    return [plain(one) for one in x] if isinstance(x, tuple) else np.asarray(x).tolist()


def act(observation):
    body = json.dumps({"instances": [plain(observation)]})
    connection.request("POST", "/v1/models/policy:predict", body)
    reply = json.load(connection.getresponse())
    return reply["predictions"][0] if "predictions" in reply else sys.exit(reply["error"])


env = gym.make(name)
observation, _ = env.reset(seed=0)
episode_return, steps, ended = 0.0, 0, False
while not ended:
    action = np.asarray(act(observation), env.action_space.dtype)
    observation, reward, terminated, truncated, _ = env.step(action)
    episode_return, steps = episode_return + float(reward), steps + 1
    ended = terminated or truncated
print(f"return {episode_return:.1f} after {steps} steps")
