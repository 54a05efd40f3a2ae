"""Writes an agent with a model card, and uploads it to the Hugging Face Hub.

    pip install huggingface_hub
    python examples/hub.py [epochs] [user/repository]

Without a repository, the example only writes the folder `hub`: the agent, the exported
policy and the card `README.md`. An upload needs a token (`hf auth login`). To load an
agent from the Hub:

    path = huggingface_hub.hf_hub_download("user/repository", "agent.keras")
    agent = tfr.load(path)
"""

import pathlib
import sys

import gymnasium as gym
import huggingface_hub
import keras
import tensorflow as tf

import tf_reinforce as tfr


def write_folder(agent, env, folder, repo_id="user/repository", episodes=100):
    """Writes agent, exported policy and model card into a folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    agent.save(folder / "agent.keras")
    agent.export(folder / "policy")
    result = agent.evaluate(env, episodes=episodes)
    mean, deviation = result["episode_return"], result["episode_return_std"]
    value = f"{mean:.2f} ± {deviation:.2f}"
    data = huggingface_hub.ModelCardData(
        library_name="keras",
        tags=["reinforcement-learning", "reinforce", "tf-reinforce", env],
        model_name="REINFORCE",
        eval_results=huggingface_hub.EvalResult(
            task_type="reinforcement-learning",
            dataset_type=env,
            dataset_name=env,
            metric_type="mean_reward",
            metric_value=value,
        ),
    )
    versions = {x.__name__: x.__version__ for x in (tfr, keras, tf, gym)}
    text = f"""---
{data.to_yaml()}
---
# REINFORCE on {env}

- Mean return of the greedy policy: {value} ({episodes} episodes)
- Training: {agent.updates:,} updates, {agent.env_steps:,} environment steps
- Observations: `{agent.observation_space}`
- Actions: `{agent.action_space}`, sampled by `{type(agent.head).__name__}`
- Versions: {", ".join(f"{name} {version}" for name, version in versions.items())}

```python
import huggingface_hub
import tf_reinforce as tfr

agent = tfr.load(huggingface_hub.hf_hub_download("{repo_id}", "agent.keras"))
print(agent.evaluate("{env}", episodes={episodes}))
```

The folder `policy` is a SavedModel, which needs TensorFlow only.
"""
    huggingface_hub.ModelCard(text).save(folder / "README.md")
    return folder


def push(agent, env, repo_id, folder="hub"):
    """Uploads an agent with its model card; returns the address of the upload."""
    write_folder(agent, env, folder, repo_id)
    api = huggingface_hub.HfApi()
    api.create_repo(repo_id, exist_ok=True)
    return api.upload_folder(repo_id=repo_id, folder_path=folder)


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    agent = tfr.Reinforce.for_env("CartPole-v1", seed=0)
    agent.fit("CartPole-v1", epochs=epochs, seed=0, verbose=0)
    if len(sys.argv) > 2:
        print(push(agent, "CartPole-v1", sys.argv[2]))
    else:
        print(
            sorted(
                path.name for path in write_folder(agent, "CartPole-v1", "hub").iterdir()
            )
        )
