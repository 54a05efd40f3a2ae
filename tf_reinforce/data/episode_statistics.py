"""Computes the statistics of finished episodes that appear in the logs."""

import numpy as np


def batch_metrics(episodes, success=None):
    """Returns the statistics of a batch of whole episodes.

    Args:
        episodes: `Episodes` of NumPy arrays.
        success: `[B]` float, for each episode 1 for success and 0 for failure, or NaN if
            the episode does not report success. `success=None` means that no episode
            reports success.

    Returns:
        Dict of floats: `episode_return` (mean over episodes of the undiscounted sum of
        rewards), `episode_return_min`, `episode_return_max`, `episode_return_std`
        (population standard deviation), `episode_length` (mean, in steps), `episodes`,
        `env_steps`, and `success` if the environment reports success.
    """
    return {
        **metrics(episode_returns(episodes), episodes.lengths),
        **({} if success is None else success_metrics(success)),
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
    """Returns `{"success": success rate}`, or `{}` if no episode reports success.

    If some episodes report success, the others did not succeed: many environments report
    it only when the goal is reached.
    """
    if np.isnan(success).all():
        return {}
    return {"success": float(np.nan_to_num(success).mean())}


def episode_logs(episode_returns, lengths, terminated, first, update):
    """Yields the arguments of `EpisodeCallback.on_episode_end` for each episode.

    Args:
        episode_returns, lengths, terminated: `[B]` arrays with one entry per episode.
        first: Int, the number of the episode at index 0 of the arrays.
        update: Int, the number of the update that uses the episodes.
    """
    arrays = episode_returns.tolist(), lengths.tolist(), terminated.tolist()
    for index, (episode_return, length, is_terminated) in enumerate(
        zip(*arrays, strict=True)
    ):
        yield (
            first + index,
            {
                "episode_return": episode_return,
                "episode_length": length,
                "terminated": is_terminated,
                "update": update,
            },
        )


def episode_returns(episodes):
    """Returns `[B]` float64, the rewards of each episode, added up in time order."""
    sums = np.cumsum(episodes.rewards, axis=0, dtype="float64")
    return sums[episodes.lengths - 1, np.arange(len(episodes.lengths))]
