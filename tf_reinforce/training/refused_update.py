"""Writes and reads updates that were refused, because a number was not finite."""

import hashlib
import pathlib

import keras
import numpy as np

from tf_reinforce import files
from tf_reinforce.data import episodes as records
from tf_reinforce.training import agent_state
from tf_reinforce.training import checkpoints
from tf_reinforce.training import learner

AGENT = "agent.keras"


def write(directory, agent, error, header):
    """Writes everything that repeats a refused update, and names it in the error.

    The folder `refused_update_N` of update N contains the agent before the update, the
    episodes and the permutations. An existing folder stays unchanged, because the update
    N of a training has the same inputs in each attempt. If the folder cannot be written,
    the message of the error states the cause.

    Args:
        directory: `pathlib.Path` of the folder of the training.
        agent: `Reinforce`, which the refused update has not changed.
        error: `learner.UpdateNotFinite` that the update raised.
        header: Dict of JSON values that describe the training.
    """
    path = directory / f"refused_update_{agent.updates}"
    refused, message = error.refused, str(error)
    episodes = refused.episodes._asdict()
    state = {
        "episodes": {name: keras.tree.flatten(x) for name, x in episodes.items()},
        "permutations": refused.permutations,
        "microbatch_size": refused.microbatch_size,
    }
    try:
        if not path.exists():
            with files.atomic_folder(path) as temporary:
                agent_path = pathlib.Path(temporary, AGENT)
                agent.save(agent_path)
                header = {**header, "update": agent.updates, "error": message}
                header["variables"] = [x.path for x in agent_state.variables(agent)]
                header["agent_sha256"] = _digest(agent_path)
                checkpoints.write_state(temporary, header, state)
    # Custom layers can raise errors of any type. The refused update must be reported.
    except Exception as cause:
        error.args = (f"{message} The update could not be saved in {path}: {cause}",)
    else:
        error.args = (
            f"{message} The update is saved in {path}. To repeat and explain the update: "
            f"tf-reinforce replay {path}",
        )


def read(path, load):
    """Reads a refused update.

    Args:
        path: `pathlib.Path` of the folder.
        load: Function from the path of a `.keras` file to an agent.

    Returns:
        The agent before the update, the `learner.RefusedUpdate`, and the manifest.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is damaged.
    """
    if not (path / checkpoints.MANIFEST).exists():
        names = ", ".join(sorted(x.name for x in path.glob("refused_update_*")))
        raise ValueError(
            "A refused update is a folder `refused_update_N` that `fit` or `tf-reinforce "
            f"train` wrote. Received: {path}, which contains "
            f"{names or 'no refused update'}."
        )
    _, manifest, state = checkpoints.read(path)
    files.expect_regular_file(path / AGENT)
    if _digest(path / AGENT) != manifest.get("agent_sha256"):
        raise ValueError(
            f"The file {path / AGENT} is damaged: its SHA-256 digest is not that of the "
            "manifest. Copy the folder of the refused update again."
        )
    agent = load(path / AGENT)
    agent._require_optimizer()
    try:
        refused = _refused(agent, state)
        variables = agent_state.variables(agent)
        # Keras gives other paths to the variables of a loaded `Sequential` model.
        for variable, name in zip(variables, manifest["variables"], strict=True):
            variable._path = str(name)
        manifest = {name: manifest[name] for name in ("error", "versions")}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The file {path / checkpoints.MANIFEST} contains no refused update of the "
            f"agent: {error!r}. Copy the folder of the refused update again."
        ) from error
    return agent, refused, manifest


def _refused(agent, state):
    """Returns a `learner.RefusedUpdate` from a state; raises an error if invalid."""
    actor, columns = agent.trainer.collector.actor, state["episodes"]
    episodes = records.Episodes(
        keras.tree.pack_sequence_as(actor.observation_spec, columns["observations"]),
        keras.tree.pack_sequence_as(actor.action_spec, columns["actions"]),
        *(columns[name][0] for name in records.Episodes._fields[2:]),
    )
    episodes = agent.trainer.check_episodes(episodes)
    permutations = state["permutations"]
    expected = agent.trainer.learner.permutations(episodes, seed=0).numpy()
    if not np.array_equal(np.sort(permutations), np.sort(expected)):
        raise ValueError("the permutations are not those of the steps")
    return learner.RefusedUpdate(episodes, permutations, state["microbatch_size"])


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
