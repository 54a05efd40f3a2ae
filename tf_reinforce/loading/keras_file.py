"""Loads an agent from a `.keras` file."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from tf_reinforce import agent as agents
from tf_reinforce import files


def load(
    path: str | os.PathLike, custom_objects: Mapping[str, Any] | None = None
) -> agents.Reinforce:
    """Loads an agent from a file that `agent.save` wrote.

    Args:
        path: Path of the `.keras` file.
        custom_objects: Dict from names to the custom classes of the policy.

    Returns:
        `Reinforce`, with the state of its optimizers if the saved agent was compiled.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, or does not contain an agent.
    """
    files.check_archive(path)
    try:
        agent = keras.saving.load_model(path, custom_objects=custom_objects)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} could not be read. {files.load_advice(error)}"
        ) from error
    if not isinstance(agent, agents.Reinforce):
        raise ValueError(
            f"{path} contains a {type(agent).__name__}, not an agent. If the file "
            "contains a policy, load the policy with Keras and make an agent: "
            "tfr.Reinforce(policy)."
        )
    return agent
