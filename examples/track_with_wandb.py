"""Logs a training to Weights & Biases, without a network connection.

    pip install wandb
    python examples/track_with_wandb.py [epochs]

In offline mode, wandb writes the run to the folder `wandb`. The command `wandb sync`
uploads the run later. To log directly, omit `mode="offline"`.
"""

import sys

import wandb
from wandb.integration.keras import WandbMetricsLogger

import tf_reinforce as tfr

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
agent = tfr.Reinforce.for_env("CartPole-v1", seed=0)
settings = {name: getattr(agent, name) for name in ("gamma", "gae_lambda", "passes")}

with wandb.init(project="reinforce", mode="offline", config=settings) as run:
    # The logger of wandb writes each log key of docs/logs.md as `epoch/<key>`.
    run.define_metric("epoch/*", step_metric="epoch/env_steps")
    agent.fit("CartPole-v1", epochs=epochs, callbacks=[WandbMetricsLogger()], verbose=0)
    run.summary.update(agent.evaluate("CartPole-v1", episodes=100))
    agent.save("agent.keras")
    artifact = wandb.Artifact("agent", type="model")
    artifact.add_file("agent.keras")
    run.log_artifact(artifact)
print("to upload the run:", f"wandb sync {run.settings.sync_dir}")
