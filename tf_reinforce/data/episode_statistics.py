"""Statistics of finished episodes for the logs."""

import numpy as np

_COLUMNS = "episode_return", "episode_length", "terminated"


def batch_metrics(episodes, info):
    """Returns the statistics of a batch of whole episodes.

    Args:
        episodes: `Episodes` of NumPy arrays.
        info: Dict of `[B]` float arrays, from `reported`.

    Returns:
        Dict of floats: `episode_return` (mean undiscounted return), `episode_return_min`,
        `episode_return_max`, `episode_return_std` (of the population), `episode_length`
        (mean, in steps), `episodes`, `env_steps`, and those of `info_metrics`.
    """
    return {**metrics(episode_returns(episodes), episodes.lengths), **info_metrics(info)}


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


def reported(info):
    """Returns what episodes have reported: without `success`, if none reports it.

    If some do, the others did not succeed: many environments report it only when the goal
    is reached.

    Args:
        info: Dict of `[B]` float arrays, NaN where an episode reports no number.
    """
    info = dict(info)
    success = info.pop("success", np.array(np.nan))
    if np.isnan(success).all():
        return info
    return {"success": np.nan_to_num(success), **info}


def info_metrics(info):
    """Returns the mean of each key over the episodes that report it, NaN without any."""
    numbers = {key: values[~np.isnan(values)] for key, values in info.items()}
    return {key: float(x.mean()) if len(x) else np.nan for key, x in numbers.items()}


def episode_columns(episodes, info):
    """Returns `[B]` arrays by name: return, length, whether it terminated, and `info`.

    Args:
        episodes: `Episodes` of NumPy arrays.
        info: As for `batch_metrics`.
    """
    columns = episode_returns(episodes), episodes.lengths, episodes.terminated
    return {**dict(zip(_COLUMNS, columns, strict=True)), **info}


def episode_logs(episode_returns, lengths, terminated, info, first, update):
    """Yields the arguments of `EpisodeCallback.on_episode_end` for each episode.

    Args:
        episode_returns, lengths, terminated: `[B]` arrays.
        info: As for `batch_metrics`.
        first: Int, the number of the first of these episodes.
        update: Int, the number of the update that uses them.
    """
    columns = episode_returns, lengths, terminated, *info.values()
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for episode, values in enumerate(rows, first):
        yield episode, {**dict(zip([*_COLUMNS, *info], values)), "update": update}


def episode_returns(episodes):
    """Returns `[B]` float64, each episode's rewards added up in time order."""
    sums = np.cumsum(episodes.rewards, axis=0, dtype="float64")
    return sums[episodes.lengths - 1, np.arange(len(episodes.lengths))]
