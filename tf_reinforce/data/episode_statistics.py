"""Statistics of finished episodes for the logs."""

import numpy as np


def batch_metrics(episodes, success):
    """Returns the statistics of a batch of whole episodes.

    Args:
        episodes: `Episodes` of NumPy arrays.
        success: `[B]` float, 1 for success, 0 for failure, NaN where an episode reports
            neither.

    Returns:
        Dict of floats: `episode_return` (mean undiscounted return), `episode_return_min`,
        `episode_return_max`, `episode_return_std` (of the population), `episode_length`
        (mean, in steps), `episodes`, `env_steps`, and `success` if it is reported.
    """
    return {
        **metrics(episode_returns(episodes), episodes.lengths),
        **success_metrics(success),
    }


def metrics(episode_returns, lengths):
    """Returns the statistics of B episodes from their `[B]` returns and lengths."""
    logs = {
        "episode_return": episode_returns.mean(),
        "episode_return_min": episode_returns.min(),
        "episode_return_max": episode_returns.max(),
        "episode_return_std": episode_returns.std(),
        "episode_length": lengths.mean(),
        "episodes": len(episode_returns),
        "env_steps": lengths.sum(),
    }
    return {name: float(value) for name, value in logs.items()}


def success_metrics(success):
    """Returns `{"success": rate}`, or `{}` if no episode reports success.

    If some do, the others did not succeed: many environments report it only when the goal
    is reached.
    """
    if np.isnan(success).all():
        return {}
    return {"success": float(np.nan_to_num(success).mean())}


def episode_logs(episode_returns, lengths, terminated, first, update):
    """Yields the arguments of `EpisodeCallback.on_episode_end` for each episode.

    Args:
        episode_returns, lengths, terminated: `[B]` arrays.
        first: Int, the number of the first of these episodes.
        update: Int, the number of the update that uses them.
    """
    names = "episode_return", "episode_length", "terminated"
    columns = episode_returns.tolist(), lengths.tolist(), terminated.tolist()
    for episode, values in enumerate(zip(*columns, strict=True), first):
        yield episode, {**dict(zip(names, values)), "update": update}


def episode_returns(episodes):
    """Returns `[B]` float64, each episode's rewards added up in time order."""
    sums = np.cumsum(episodes.rewards, axis=0, dtype="float64")
    return sums[episodes.lengths - 1, np.arange(len(episodes.lengths))]
