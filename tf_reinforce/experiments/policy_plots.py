"""Plots of a policy over its observations, or along an episode."""

import math
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import make_envs
from tf_reinforce.engine.update import estimator as estimators
from tf_reinforce.experiments import plots
from tf_reinforce.support import extras

_MAP_EPISODES = 10  # episodes whose observations are drawn in a map
_MAX_VALUES = 1000  # integers with more values have no map
_MAX_BOUND = 1e6  # wider bounds are replaced by the range of played episodes
_POINTS = {1: 401, 2: 121}  # points of a real axis, for one and for two axes
_MAX_PANELS = 24  # parts of an action that are drawn
_MAX_STEPS = 200  # of an episode
_MAX_LEGEND = 20  # values of an action that are listed
_SAMPLES = 256  # for the mean and deviation of a real action
_TIGHT = {"subplot_kw": {"xmargin": 0}}  # no empty space beside the data


def draw(agent, env, *, seed=0, env_kwargs=None, max_episode_steps=None):
    """Draws an agent's policy.

    If an observation is a category or consists of one or two numbers, the result is a map
    of the policy over all observations. For discrete actions, the color shows the most
    likely action, and it is stronger if the action is more likely. For real actions, the
    map shows their means. If an observation has no bounds, the map covers the range that
    ten episodes with sampled actions visit.

    Other observations are too large for a map, so the result shows the policy along the
    first 200 steps of one episode with sampled actions, together with its rewards and its
    return. The panels show the probabilities of discrete actions, or the mean and
    standard deviation of real ones. Recurrent policies and policies with action masks in
    `info` are drawn this way too.

    Args:
        agent: `Reinforce`.
        env: Environment, in any form that `Reinforce.evaluate` accepts.
        seed: Int. The episodes are the first ones of `Reinforce.evaluate` with this seed
            and `deterministic=False`.
        env_kwargs: Dict of keyword arguments for the environment's constructor.
        max_episode_steps: Positive int, the time limit in steps.

    Returns:
        A `matplotlib.figure.Figure` with a transparent background.

    Raises:
        ImportError: Without matplotlib.
        EnvironmentFault: If the environment fails.
    """
    extras.load("matplotlib", "plot")
    options = dict(env_kwargs=env_kwargs, max_episode_steps=max_episode_steps)
    with make_envs.open_envs(env, 1, **options) as envs:
        agent.build_for_env(envs)
        actor = agent.trainer.actor
        has_map = actor.recurrent is None and actor.mask_source is None
        has_map = has_map and _is_small(agent.observation_space)
        request = environments.CollectionRequest(
            seeding.StreamKey(seed, "evaluation", 0), _MAP_EPISODES if has_map else 1
        )
        episodes = agent.trainer.play(envs, request).episodes
        title = "" if envs.spec is None else f"{envs.spec.id}: "
    if not has_map:
        return _draw_episode(agent.trainer.estimator, episodes, title)
    visited = estimators.valid_steps(episodes).gather(episodes.observations)
    return _draw_map(agent, visited, title)


def _draw_episode(estimator, episodes, title):
    """Draws the policy along an episode, its rewards and its return."""
    steps = estimators.valid_steps(episodes)
    outputs, _ = estimator.outputs_at(steps, episodes.observations, steps)
    outputs = estimator.mask_outputs(outputs, steps, episodes.masks)
    along = outputs, *map(steps.gather, (episodes.actions, episodes.rewards))
    outputs, actions, rewards = keras.tree.map_structure(lambda x: x[:_MAX_STEPS], along)
    parts = describe(estimator.head, outputs, actions)[:_MAX_PANELS]
    heights = [2.2 if len(parts) <= 4 else 1.2] * len(parts) + [1.2, 1.2]
    figure, panels = plots.panels(heights, sharex=True, **_TIGHT)
    times = np.arange(len(rewards))
    for panel, part in zip(panels, parts):
        _draw_along(panel, times, part)
    curves = {"reward": rewards, "return so far": np.cumsum(rewards, dtype="float64")}
    for panel, (label, values) in zip(panels[-2:], curves.items()):
        panel.plot(times, values, color=plots.GRAY, lw=1.2, drawstyle="steps-mid")
        plots.style(panel, label)
    panels[-1].set_xlabel("step", color=plots.GRAY)
    end = "terminated" if bool(np.asarray(episodes.terminated)[0]) else "truncated"
    title += f"one episode with sampled actions, {end} after {int(episodes.lengths[0])}"
    figure.suptitle(f"{title} steps", color=plots.GRAY)
    return figure


def _draw_map(agent, visited, title):
    """Draws the policy over all observations of one or two numbers."""
    space, estimator = agent.observation_space, agent.trainer.estimator
    axes = find_axes(space, visited)
    outputs, _ = estimator.forward(make_grid(space, axes))
    parts = describe(estimator.head, outputs)[:_MAX_PANELS]
    is_line, step = len(axes) == 1, "mid" if space.dtype.kind in "iu" else None
    figure, panels = plots.panels([3.4 if is_line else 5.0] * len(parts), **_TIGHT)
    for panel, part in zip(panels, parts):
        if is_line:
            _draw_along(panel, *axes, part, step)
            panel.set_xlabel("observation", color=plots.GRAY)
        else:
            _draw_plane(panel, *axes, part, visited)
    figure.suptitle(f"{title}the policy over its observations", color=plots.GRAY)
    return figure


def _draw_along(panel, x, part, step=None):
    """Draws one part of the action over the steps, or over one number observed."""
    if isinstance(part, Choices):
        colors = _colors(len(part.values))
        panel.stackplot(x, part.probs.T, colors=colors, step=step, linewidth=0)
        panel.set_ylim(0, 1)
        _list_values(panel, part)
        plots.style(panel, f"probability\n{part.name}")
        return
    color, (low, high) = plots.COLORS[0], part.mean + [-part.deviation, part.deviation]
    panel.fill_between(x, low, high, color=color, alpha=0.3, linewidth=0, step=step)
    drawstyle = "steps-mid" if step else "default"
    label = "mean ± standard deviation"
    panel.plot(x, part.mean, color=color, lw=1.5, drawstyle=drawstyle, label=label)
    if part.taken is not None:
        points = dict(s=6, color=plots.COLORS[1], linewidths=0, label="taken")
        panel.scatter(x, part.taken, **points)
    options = dict(frameon=False, labelcolor=plots.GRAY, ncols=2)
    panel.legend(loc="lower right", bbox_to_anchor=(1, 0.97), **options)
    plots.style(panel, part.name)


def _draw_plane(panel, x, y, part, visited):
    """Draws a part of the action over the first number observed and the second."""
    is_real = isinstance(part, Numbers)
    values = part.mean if is_real else _most_likely(part)
    values = values.reshape(len(y), len(x), *values.shape[1:])
    image = panel.pcolormesh(x, y, values, cmap="viridis", rasterized=True)
    if is_real:
        meaning, bar = "mean", panel.figure.colorbar(image, ax=panel).ax
        plots.style(bar, f"mean {part.name}")
        bar.grid(visible=False)
    else:
        meaning = "most likely value, stronger if more probable"
        _list_values(panel, part)
    inside = dict(xlim=panel.get_xlim(), ylim=panel.get_ylim())
    points = np.reshape(visited, [-1, 2]).T
    panel.scatter(*points, s=2, color="black", alpha=0.4, linewidths=0)
    panel.set(**inside)
    panel.set_xlabel("observation[0]", color=plots.GRAY)
    plots.style(panel, "observation[1]")
    panel.grid(visible=False)
    panel.set_title(f"{part.name}: {meaning}", color=plots.GRAY, fontsize=10)


def _bounds(space):
    """Returns the lowest and highest of each number of a space, `[numbers]` floats."""
    bounds = spaces.category_bounds(space) or (space.low, space.high)
    return [np.ravel(x).astype("float64") for x in bounds]


def _is_small(space):
    """Returns whether a map can show all observations of a Gymnasium space."""
    if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete)):
        return False
    is_narrow = space.dtype.kind == "f" or np.ptp(_bounds(space)) < _MAX_VALUES
    return math.prod(space.shape) in _POINTS and is_narrow


def find_axes(space, visited):
    """Returns the values on the axis of each number of an observation, one or two arrays.

    Each axis ends at the bounds of the space. If the bounds are infinite or more than 1e6
    apart, the axis covers the range of `visited` instead, widened by a twentieth on each
    side.

    Args:
        space: `Discrete`, or a `Box` of one or two numbers.
        visited: `[N, ...]`, observations of episodes.
    """
    axes, columns = [], np.reshape(visited, [len(visited), -1]).T.astype("float64")
    for column, low, high in zip(columns, *_bounds(space), strict=True):
        if not high - low < _MAX_BOUND:
            margin = max(0.05 * np.ptp(column), 1e-3)
            low, high = column.min() - margin, column.max() + margin
        is_whole = space.dtype.kind in "iu"
        count = round(high - low) + 1 if is_whole else _POINTS[len(columns)]
        axes.append(np.linspace(low, high, count))
    return axes


def make_grid(space, axes):
    """Returns the observations at all points of the axes, an `[N, …]` array.

    The first axis varies fastest.
    """
    rows = np.stack([x.ravel() for x in np.meshgrid(*axes)], axis=1)
    return rows.reshape(-1, *space.shape).astype(space.dtype)


def _most_likely(part):
    """Returns `[N, 4]` colors of the most likely values, more opaque if more probable.

    The opacity is 0.3 for a uniform choice, and 1 for a certain one.
    """
    colors, uniform = _colors(len(part.values)), 1.0 / len(part.values)
    excess = (part.probs.max(1) - uniform) / max(1.0 - uniform, 1e-9)
    return np.column_stack([colors[part.probs.argmax(1), :3], 0.3 + 0.7 * excess])


def _colors(count):
    """Returns `[count, 4]`, red, green, blue and opacity for each value of an action."""
    matplotlib = extras.load("matplotlib", "plot")
    if count <= len(plots.COLORS):
        return matplotlib.colors.to_rgba_array(plots.COLORS[:count])
    return matplotlib.colormaps["turbo"](np.linspace(0.0, 1.0, count))


def _list_values(panel, part):
    """Adds a legend of a discrete action's values if there are not too many."""
    if len(part.values) > _MAX_LEGEND:
        return
    for value, color in zip(part.values, _colors(len(part.values))):
        panel.scatter([], [], color=color, marker="s", label=value)
    options = dict(frameon=False, labelcolor=plots.GRAY, reverse=True)
    panel.legend(loc="center left", bbox_to_anchor=(1, 0.5), **options)


class Choices(NamedTuple):
    """The probabilities of a discrete action's K values at N observations."""

    name: str
    values: list  # of K texts
    probs: np.ndarray  # [N, K], one row sums to one


class Numbers(NamedTuple):
    """Mean and standard deviation of one real number of an action at N observations.

    All numbers are in the environment's units, after clipping and rounding.
    """

    name: str
    mean: np.ndarray  # [N]
    deviation: np.ndarray  # [N]
    taken: Any = None  # [N], the numbers that were taken, or `None`


def describe(head, outputs, actions=None):
    """Returns the parts of the action distribution, a list of `Choices` and `Numbers`.

    Each categorical or binary action gives one `Choices`. That of a `Multinomial`
    contains the expected shares of its categories. For all other heads, each number of
    the action gives one `Numbers`, which is estimated from 256 samples.

    Args:
        head: A built `heads.Head`.
        outputs: `[N, P]` float tensor, masked policy outputs.
        actions: N raw actions, nested like the head's, or `None`.
    """
    leaves = getattr(head, "leaves", [head])
    sizes = [leaf.outputs_size for leaf in leaves]
    taken = [None] * len(sizes) if actions is None else keras.tree.flatten(actions)
    split = tf.split(outputs, sizes, axis=-1)
    arguments = zip(getattr(head, "names", ["action"]), leaves, split, taken)
    return [part for leaf in arguments for part in _parts(*leaf)]


def _parts(name, head, outputs, actions):
    """Returns the parts of a head that is not a `Composite`."""
    distribution, tfd = head.distribution(outputs), tfp.distributions
    if isinstance(distribution, tfd.Independent):
        distribution = distribution.distribution
    if isinstance(distribution, (tfd.Categorical, tfd.Bernoulli, tfd.Multinomial)):
        return _choices(name, head, distribution)
    noises = tensor_noise.stateless_noise(
        0, head.noise.kind, [_SAMPLES, *head.noise.shape], outputs.dtype
    )
    shape = [len(outputs), *head.noise.shape]
    samples = (head.sample(outputs, tf.broadcast_to(x, shape)) for x in noises)
    rows = np.array([_to_rows(head, x) for x in samples])
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    count = mean.shape[1]
    taken = [None] * count if actions is None else _to_rows(head, actions).T
    columns = enumerate(zip(mean.T, deviation.T, taken, strict=True))
    return [Numbers(_indexed(name, i, count), *column) for i, column in columns]


def _choices(name, head, distribution):
    """Returns a `Choices` for each action of a categorical or binary distribution."""
    probs = distribution.probs_parameter().numpy()
    if isinstance(distribution, tfp.distributions.Bernoulli):
        probs = np.stack([1.0 - probs, probs], axis=-1)
    probs = probs.reshape(len(probs), -1, probs.shape[-1])  # [N, actions, K]
    count, size = probs.shape[1:]
    starts = np.broadcast_to(getattr(head, "start", 0), count)
    sizes = getattr(head, "sizes", [size] * count)  # the others of K are padding
    parts = []
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        values = [str(start + k) for k in range(size)]
        parts.append(Choices(_indexed(name, i, count), values, probs[:, i, :size]))
    return parts


def _to_rows(head, actions):
    """Returns raw actions as `[N, A]` float64 in the environment's units."""
    env_actions = np.asarray(head.to_environment(tf.convert_to_tensor(actions)))
    return env_actions.reshape(len(env_actions), -1).astype("float64")


def _indexed(name, index, count):
    return f"{name} {index}" if count > 1 else name
