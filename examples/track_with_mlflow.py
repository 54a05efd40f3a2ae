"""Logs a training, its settings and its agent to MLflow, in the current folder.

    pip install mlflow-skinny sqlalchemy alembic
    python examples/track_with_mlflow.py [epochs]

The runs are stored in the file `mlflow.db`, and the files of the runs in the folder
`artifacts`. The command `mlflow ui --backend-store-uri sqlite:///mlflow.db` of the whole
package `mlflow` shows the runs in a browser.
"""

import pathlib
import sys

import keras
import mlflow

import tf_reinforce as tfr

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
mlflow.set_tracking_uri("sqlite:///mlflow.db")
if mlflow.get_experiment_by_name("CartPole-v1") is None:
    mlflow.create_experiment("CartPole-v1", pathlib.Path("artifacts").resolve().as_uri())
mlflow.set_experiment("CartPole-v1")


def log(epoch, logs):
    """Logs each key of docs/logs.md against the number of environment steps."""
    mlflow.log_metrics(logs, step=int(logs["env_steps"]))


agent = tfr.Reinforce.for_env("CartPole-v1", seed=0)
with mlflow.start_run() as run:
    mlflow.log_params({"gamma": agent.gamma, "baseline": type(agent.baseline).__name__})
    callback = keras.callbacks.LambdaCallback(on_epoch_end=log)
    agent.fit("CartPole-v1", epochs=epochs, callbacks=[callback], verbose=0)
    results = agent.evaluate("CartPole-v1", episodes=100)
    mlflow.log_metrics({f"test_{name}": value for name, value in results.items()})
    agent.save("agent.keras")
    mlflow.log_artifact("agent.keras")

stored = mlflow.get_run(run.info.run_id).data
print({name: stored.metrics[name] for name in ("episode_return", "test_episode_return")})
