"""Plots of a policy over its observations, or along an episode."""

import colorsys
import math
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import make_envs
from tf_reinforce.engine.update import estimator as estimators
from tf_reinforce.experiments import plots
from tf_reinforce.heads import gaussian
from tf_reinforce.support import extras

_MAP_EPISODES = 10  # episodes whose observations are drawn in a map
_MAX_AXES = 2  # observations with more numbers have no map
_MAX_VALUES = 1000  # neither have integers with more values
_MAX_BOUND = 1e6  # wider bounds are replaced by the range of played episodes
_POINTS = {1: 401, 2: 121}  # points of a real axis, for one and for two axes
_MAX_PANELS = 24  # parts of an action that are drawn
_MAX_STEPS = 200  # of an episode
_MAX_LEGEND = 20  # values of an action that are listed
_MAX_CELLS = 200  # of a grid of states, to write the action in each
# Standard normal nodes of the trapezoidal rule. Its error is far below 1e-6 for smooth
# functions, and also small for clipped and rounded actions.
_NODES = np.linspace(-6.0, 6.0, 121)
_SAMPLES = 256  # for the mean and deviation of a custom head


def draw(agent, env, *, seed=0, env_kwargs=None, max_episode_steps=None):
    """Draws an agent's policy.

    Observations of one or two numbers give a map of the whole space. If actions are
    discrete, its color shows the most likely one, the stronger the more likely; if they
    are real, it shows their means. Where the space has no bound, the map covers the range
    that ten episodes with sampled actions visit.

    For larger observations, recurrent policies and action masks in `info`, the result is
    the policy along the first 200 steps of one episode with sampled actions, above its
    rewards and its return. Panels show the probabilities of discrete actions; for real
    ones, mean and standard deviation with the numbers taken.

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
        is_plain = actor.recurrent is None and actor.mask_source is None
        has_map = is_plain and _is_small(agent.observation_space)
        request = environments.CollectionRequest(
            seeding.StreamKey(seed, "evaluation", 0), _MAP_EPISODES if has_map else 1
        )
        episodes = agent.trainer.play(envs, request).episodes
        title = "" if envs.spec is None else f"{envs.spec.id}: "
    if not has_map:
        return _draw_episode(agent.trainer.estimator, episodes, title)
    visited = estimators.valid_steps(episodes).gather(episodes.observations)
    return _draw_map(agent, visited, title, _cells_of_states(env, env_kwargs))


def _draw_episode(estimator, episodes, title):
    """Draws the policy along an episode, its rewards and its return."""
    steps = estimators.valid_steps(episodes)
    outputs, _ = estimator.outputs_at(steps, episodes.observations, steps)
    outputs = estimator.mask_outputs(outputs, steps, episodes.masks)
    along = outputs, *map(steps.gather, (episodes.actions, episodes.rewards))
    outputs, actions, rewards = keras.tree.map_structure(lambda x: x[:_MAX_STEPS], along)
    parts = describe(estimator.head, outputs, actions)[:_MAX_PANELS]
    heights = [2.2 if len(parts) <= 4 else 1.2] * len(parts) + [1.2, 1.2]
    figure, panels = _figure(heights, sharex=True)
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


def _draw_map(agent, visited, title, cells):
    """Draws the policy over all observations of one or two numbers."""
    space = agent.observation_space
    visited = [np.reshape(x, [len(x), -1]) for x in keras.tree.flatten(visited)]
    visited = np.concatenate(visited, axis=1, dtype="float64")
    axes = find_axes(space, visited)
    outputs, _ = agent.trainer.estimator.forward(make_grid(space, axes))
    parts = describe(agent.trainer.estimator.head, outputs)[:_MAX_PANELS]
    is_line = len(axes) == 1 and cells is None
    figure, panels = _figure([3.4 if is_line else 5.0] * len(parts))
    for panel, part in zip(panels, parts):
        if is_line:
            [axis] = axes
            _draw_along(panel, axis.points, part, "mid" if axis.is_whole else None)
            panel.set_xlabel(axis.name, color=plots.GRAY)
        elif cells is not None:
            rows, columns = map(np.arange, cells.shape)
            _draw_plane(panel, part, Axis("column", columns), Axis("row", rows))
            _write_values(panel, part, cells)
        else:
            _draw_plane(panel, part, *axes)
            if not any(axis.is_whole for axis in axes):
                inside = dict(xlim=panel.get_xlim(), ylim=panel.get_ylim())
                panel.scatter(*visited.T, s=2, color="black", alpha=0.4, linewidths=0)
                panel.set(**inside)
    figure.suptitle(f"{title}the policy over its observations", color=plots.GRAY)
    return figure


def _figure(heights, **options):
    """Returns a figure and its panels, one below the other."""
    size = 8.0, sum(heights) + 1.0
    figure, panels = plots.panels(
        len(heights), 1, size, squeeze=False, height_ratios=heights, **options
    )
    for panel in panels[:, 0]:
        panel.margins(x=0)
    return figure, panels[:, 0]


def _draw_along(panel, x, part, step=None):
    """Draws one part of the action over the steps, or over one number observed."""
    if isinstance(part, Choices):
        colors = _colors(len(part.values))
        panel.stackplot(x, part.probs.T, colors=colors, step=step, linewidth=0)
        panel.set_ylim(0, 1)
        _list_values(panel, part)
        plots.style(panel, f"probability\n{part.name}")
        return
    color, ends = (
        plots.COLORS[0],
        (part.mean - part.deviation, part.mean + part.deviation),
    )
    panel.fill_between(x, *ends, color=color, alpha=0.3, linewidth=0, step=step)
    drawstyle = "steps-mid" if step else "default"
    label = "mean ± standard deviation"
    panel.plot(x, part.mean, color=color, lw=1.5, drawstyle=drawstyle, label=label)
    if part.taken is not None:
        points = dict(s=6, color=plots.COLORS[1], linewidths=0, label="taken")
        panel.scatter(x, part.taken, **points)
    options = dict(frameon=False, labelcolor=plots.GRAY, ncols=2)
    panel.legend(loc="lower right", bbox_to_anchor=(1, 0.97), **options)
    plots.style(panel, part.name)


def _draw_plane(panel, part, x, y):
    """Draws the most likely values or the means of a part over two axes."""
    if isinstance(part, Choices):
        values, meaning = (
            _most_likely(part),
            "most likely value, stronger if more probable",
        )
        _list_values(panel, part)
    else:
        values, meaning = part.mean, "mean"
    values = values.reshape(len(y.points), len(x.points), *values.shape[1:])
    image = panel.pcolormesh(x.points, y.points, values, cmap="viridis", rasterized=True)
    if isinstance(part, Numbers):
        bar = panel.figure.colorbar(image, ax=panel).ax
        plots.style(bar, f"mean {part.name}")
        bar.grid(visible=False)
    plots.style(panel, y.name)
    panel.grid(visible=False)
    panel.set_xlabel(x.name, color=plots.GRAY)
    panel.set_title(f"{part.name}: {meaning}", color=plots.GRAY, fontsize=10)


def _write_values(panel, part, cells):
    """Writes the values of a part into the cells of a grid of states."""
    if isinstance(part, Choices):
        texts = [f"{part.values[p.argmax()]}: {p.max():.2f}" for p in part.probs]
    else:
        texts = [f"{x:.3g}" for x in part.mean]
    box = dict(facecolor="white", alpha=0.6, linewidth=0, boxstyle="round,pad=0.15")
    place = dict(ha="center", va="center", fontsize=7, bbox=box)
    for text, ((row, column), letter) in zip(texts, np.ndenumerate(cells)):
        if cells.size <= _MAX_CELLS:
            panel.text(column, row, f"{letter}\n{text}".strip(), **place)
    rows, columns = map(range, cells.shape)
    panel.set(xticks=columns, yticks=rows, ylim=panel.get_ylim()[::-1], aspect="equal")


def _cells_of_states(env, env_kwargs):
    """Returns `[rows, columns]` texts if the states are cells of a grid, else `None`.

    FrozenLake's map `desc` has a letter for each state. CliffWalking only has a `shape`,
    so its texts are empty.
    """
    if not isinstance(env, (str, gym.envs.registration.EnvSpec)):
        return None
    gym_env = gym.make(env, disable_env_checker=True, **(env_kwargs or {}))
    space, plain = gym_env.observation_space, gym_env.unwrapped
    gym_env.close()
    cells, shape = getattr(plain, "desc", None), getattr(plain, "shape", None)
    if cells is None and isinstance(shape, tuple):
        cells = np.full(shape, "")
    is_grid = isinstance(space, gym.spaces.Discrete) and np.size(cells) == space.n
    return np.asarray(cells).astype(str) if is_grid and np.ndim(cells) == 2 else None


class Axis(NamedTuple):
    """One number of an observation."""

    name: str
    points: np.ndarray  # the values of the grid, in increasing order
    is_whole: bool = True


def _numbers_of(space):
    """Yields the name, bounds and integrality of each number of a space."""
    nested = spaces.to_nest(space)
    for leaf, name in zip(*map(keras.tree.flatten, (nested, spaces.names(nested)))):
        bounds = spaces.category_bounds(leaf) or (leaf.low, leaf.high)
        pairs = np.broadcast_arrays(*bounds, np.empty(leaf.shape))[:2]
        for index, (low, high) in enumerate(zip(*map(np.ravel, pairs))):
            label = f"{name}[{index}]" if math.prod(leaf.shape) > 1 else name
            yield label, float(low), float(high), leaf.dtype.kind in "iu"


def _is_small(space):
    """Returns whether a map can show all observations of a Gymnasium space."""
    numbers = [*_numbers_of(space)]
    counts = [high - low for _, low, high, is_whole in numbers if is_whole]
    return len(numbers) <= _MAX_AXES and max(counts, default=0) < _MAX_VALUES


def find_axes(space, visited):
    """Returns one or two `Axis`, one for each number of an observation.

    They end at the bounds of the space. If these are infinite or more than 1e6 apart, the
    ends come from the range of `visited`, widened by a twentieth on each side.

    Args:
        space: Gymnasium space of the observations.
        visited: `[N, numbers]`, observations of episodes.
    """
    axes = []
    for (name, low, high, is_whole), column in zip(_numbers_of(space), visited.T):
        if not high - low < _MAX_BOUND:
            margin = max(0.05 * np.ptp(column), 1e-3)
            low, high = column.min() - margin, column.max() + margin
        count = round(high - low) + 1 if is_whole else _POINTS[visited.shape[1]]
        axes.append(Axis(name, np.linspace(low, high, count), is_whole))
    return axes


def make_grid(space, axes):
    """Returns the observations at all points of the axes, `[N, …]` nested arrays.

    The first axis varies fastest.
    """
    columns = np.meshgrid(*(axis.points for axis in axes))
    rows = np.stack([x.ravel() for x in columns], axis=1)
    leaves = keras.tree.flatten(spaces.to_nest(space))
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    arrays = [
        part.reshape(-1, *leaf.shape).astype(leaf.dtype)
        for leaf, part in zip(leaves, np.split(rows, ends[:-1], axis=1))
    ]
    return keras.tree.pack_sequence_as(spaces.to_nest(space), arrays)


def _most_likely(part):
    """Returns `[N, 4]` colors of the most likely values, more opaque if more probable.

    The opacity is 0.3 for a uniform choice, and 1 for a certain one.
    """
    count = len(part.values)
    colors = np.array(_colors(count))[part.probs.argmax(1)]
    uniform = 1.0 / count
    excess = (part.probs.max(1) - uniform) / max(1.0 - uniform, 1e-9)
    return np.concatenate([colors, 0.3 + 0.7 * excess[:, None]], axis=1)


def _colors(count):
    """Returns red, green and blue for each of `count` values of an action."""
    if count <= len(plots.COLORS):
        codes = [bytes.fromhex(color[1:]) for color in plots.COLORS[:count]]
        return [tuple(x / 255 for x in code) for code in codes]
    return [colorsys.hls_to_rgb(k / count, 0.52, 0.62) for k in range(count)]


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

    Each categorical or binary action gives one `Choices`, which for a `Multinomial` holds
    the expected shares of its categories. All other heads give one `Numbers` per number.
    Mean and deviation are closed forms for a `Beta`, integrals over the noise
    (trapezoidal rule) for a Gaussian head, and estimates from 256 samples for a custom
    head.

    Args:
        head: A built `heads.Head`.
        outputs: `[N, P]` float tensor, masked policy outputs.
        actions: N raw actions, nested like the head's, or `None`.
    """
    if not isinstance(head, heads.Composite):
        return _parts("action", head, outputs, actions)
    sizes = [leaf.outputs_size for leaf in head.leaves]
    taken = [None] * len(sizes) if actions is None else keras.tree.flatten(actions)
    leaves = zip(head.names, head.leaves, tf.split(outputs, sizes, axis=-1), taken)
    return [part for leaf in leaves for part in _parts(*leaf)]


def _parts(name, head, outputs, actions):
    """Returns the parts of a head that is not a `Composite`."""
    distribution, tfd = head.distribution(outputs), tfp.distributions
    if isinstance(distribution, tfd.Independent):
        distribution = distribution.distribution
    if isinstance(distribution, (tfd.Categorical, tfd.Bernoulli, tfd.Multinomial)):
        return _choices(name, head, distribution)
    if isinstance(distribution, tfd.Beta) and isinstance(head, heads.Beta):
        width = np.subtract(head.high, head.low)
        mean = head.low + width * distribution.mean()
        deviation = width * distribution.stddev()
    else:
        mean, deviation = _moments(head, outputs)
    mean, deviation = np.asarray(mean), np.asarray(deviation)
    count = mean.shape[1]
    taken = [None] * count if actions is None else _to_rows(head, actions).T
    columns = enumerate(zip(mean.T, deviation.T, taken, strict=True))
    return [Numbers(_indexed(name, i, count), *column) for i, column in columns]


def _choices(name, head, distribution):
    """Returns a `Choices` for each action of a categorical or binary distribution."""
    probs = distribution.probs_parameter().numpy()
    if isinstance(distribution, tfp.distributions.Bernoulli):
        probs = np.stack([1.0 - probs, probs], axis=-1)
    elif isinstance(distribution, tfp.distributions.Multinomial):
        name = f"{name}, expected share"
    probs = probs.reshape(len(probs), -1, probs.shape[-1])  # [N, actions, K]
    count, size = probs.shape[1:]
    starts = np.broadcast_to(getattr(head, "start", 0), count)
    sizes = getattr(head, "sizes", [size] * count)  # the others of K are padding
    return [
        Choices(
            _indexed(name, i, count),
            [str(start + k) for k in range(size)],
            probs[:, i, :size],
        )
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def _moments(head, outputs):
    """Returns mean and deviation of actions by integrals over noise, or by samples."""
    shape, weights = [len(outputs), *head.noise.shape], np.ones(_SAMPLES)
    if isinstance(head, gaussian.GaussianHead):
        weights = np.exp(-(_NODES**2) / 2)
        noises = (tf.fill(shape, tf.cast(node, outputs.dtype)) for node in _NODES)
    else:
        noises = (
            tensor_noise.stateless_noise(seed, head.noise.kind, shape, outputs.dtype)
            for seed in range(_SAMPLES)
        )
    rows = np.array([_to_rows(head, head.sample(outputs, noise)) for noise in noises])
    mean = np.average(rows, axis=0, weights=weights)
    return mean, np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weights))


def _to_rows(head, actions):
    """Returns raw actions as `[N, A]` float64 in the environment's units."""
    env_actions = np.asarray(head.to_environment(tf.convert_to_tensor(actions)))
    return env_actions.reshape(len(env_actions), -1).astype("float64")


def _indexed(name, index, count):
    return f"{name} {index}" if count > 1 else name
