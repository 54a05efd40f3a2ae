"""Computes statistics of finished episodes under the log keys."""

import numpy as np


def batch_metrics(episodes, success=None):
    """What a batch of whole episodes amounts to.

    Args:
        episodes: `Episodes` of NumPy arrays.
        success: `[B]` float, 1 or 0 per episode, NaN where the environment does not
            say; `None` for nothing known.

    Returns:
        Dict of floats: `episode_return` (mean over episodes of the plain sum of
        rewards), `episode_return_min`, `_max`, `_std` (population deviation),
        `episode_length` (mean, in steps), `episodes`, `env_steps`, and `success`
        where the environment reports it.
    """
    return {
        **metrics(episode_returns(episodes), episodes.lengths),
        **({} if success is None else success_metrics(success)),
    }


def metrics(returns, lengths):
    """The same from `[B]` returns and lengths, but for `success`."""
    logs = {
        "episode_return": returns.mean(),
        "episode_return_min": returns.min(),
        "episode_return_max": returns.max(),
        "episode_return_std": returns.std(),
        "episode_length": lengths.mean(),
        "episodes": len(returns),
        "env_steps": lengths.sum(),
    }
    return {name: float(value) for name, value in logs.items()}


def success_metrics(success):
    """`{"success": share}` where the environment reports it, else nothing."""
    return {} if np.isnan(success).all() else {"success": float(np.nanmean(success))}


def episode_logs(returns, lengths, terminated, first, update):
    """`(number, logs)` for each episode, one after the other; see `EpisodeCallback`.

    Args:
        returns, lengths, terminated: `[B]` arrays.
        first: Int, the number of the first of these episodes.
        update: Int.
    """
    columns = returns.tolist(), lengths.tolist(), terminated.tolist()
    for column, (total, length, ended) in enumerate(zip(*columns, strict=True)):
        yield (
            first + column,
            {
                "episode_return": total,
                "episode_length": length,
                "terminated": ended,
                "update": update,
            },
        )


def episode_returns(episodes):
    """`[B]` float64, the sum of each episode's rewards in the order they came."""
    sums = np.cumsum(episodes.rewards, axis=0, dtype="float64")
    return sums[episodes.lengths - 1, np.arange(len(episodes.lengths))]
