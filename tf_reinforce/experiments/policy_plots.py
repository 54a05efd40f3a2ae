"""Draws the policy of an agent over its observations, or along an episode."""

import colorsys
import math
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import make_envs
from tf_reinforce.engine.update import estimator as estimators
from tf_reinforce.experiments import plots
from tf_reinforce.heads import gaussian

_MAP_EPISODES = 10  # episodes whose observations are drawn in a map
_MAX_AXES = 2  # observations with more numbers have no map
_MAX_BOUND = 1e6  # wider bounds are replaced by the range of played episodes
_POINTS = {1: 401, 2: 121}  # points of a real axis, for one and for two axes
_MAX_VALUES = 1000  # values of an integer axis
_MAX_PANELS = 24  # parts of an action that are drawn
_MAX_STEPS = 200  # of an episode
_MAX_LEGEND = 20  # values of an action that are listed
_MAX_CELLS = 200  # cells of a grid of states in which the action is written
_WIDTH = 8.0  # of a figure, in inches
# Standard normal numbers of the trapezoidal rule, whose error is far below 1e-6 for
# smooth functions, and small also for clipped and rounded actions.
_NODES = np.linspace(-6.0, 6.0, 121)
_SAMPLES = 256  # samples of a custom head, from which mean and deviation are estimated


def draw(agent, env, *, seed=0, env_kwargs=None, max_episode_steps=None):
    """Draws the policy of an agent.

    If an observation has one or two numbers, the picture is a map of the policy over all
    observations. With discrete actions, the map shows the most likely action by its color
    and the probability of this action by the strength of the color. With real actions, it
    shows their means. If a bound of an observation is infinite, the map covers the range
    that ten episodes with sampled actions have visited.

    If an observation has more numbers, the policy is recurrent, or the environment
    reports action masks in `info`, the picture shows the policy along the first 200 steps
    of one episode with sampled actions, above the rewards and the return: the
    probabilities of discrete actions, or mean and standard deviation of real actions with
    the actions taken.

    Args:
        agent: `Reinforce`.
        env: Environment, in any form that `Reinforce.evaluate` accepts.
        seed: Int. The episodes are the first ones of `Reinforce.evaluate` with this seed
            and `deterministic=False`.
        env_kwargs: Dict of keyword arguments for the constructor of the environment.
        max_episode_steps: Positive int, the time limit in steps.

    Returns:
        A `matplotlib.figure.Figure` with a transparent background.

    Raises:
        ImportError: Without matplotlib.
        EnvironmentFault: If the environment fails.
    """
    plots.import_matplotlib()
    options = dict(env_kwargs=env_kwargs, max_episode_steps=max_episode_steps)
    with make_envs.open_envs(env, 1, **options) as envs:
        agent.build_for_env(envs)
        actor = agent.trainer.actor
        has_map = (
            actor.recurrent is None
            and actor.mask_source is None
            and count_numbers(agent.observation_space) <= _MAX_AXES
        )
        request = environments.CollectionRequest(
            seeding.StreamKey(seed, "evaluation", 0), _MAP_EPISODES if has_map else 1
        )
        episodes = agent.trainer.play(envs, request).episodes
        name = "" if envs.spec is None else envs.spec.id
    steps = estimators.valid_steps(episodes)
    visited = steps.gather(episodes.observations)
    axes = find_axes(agent.observation_space, visited) if has_map else None
    if axes is None:
        return _draw_episode(agent.trainer.estimator, episodes, name)
    return _draw_map(agent, axes, visited, name, _cells_of_states(env, env_kwargs))


def _draw_episode(estimator, episodes, env_name):
    """Draws the parts of the policy along the first episode, rewards and return."""
    steps = estimators.valid_steps(episodes)
    outputs, _ = estimator.outputs_at(steps, episodes.observations, steps)
    outputs = estimator.mask_outputs(outputs, steps, episodes.masks)
    actions = steps.gather(episodes.actions)
    parts = describe(estimator.head, outputs, actions)
    shown = parts[:_MAX_PANELS]
    rewards = np.asarray(steps.gather(episodes.rewards), "float64")
    heights = [2.2 if len(shown) <= 4 else 1.2] * len(shown) + [1.2, 1.2]
    figure, panels = _figure(len(heights), sum(heights) + 1.0, heights)
    times = np.arange(len(rewards))
    for panel, part in zip(panels, shown):
        _draw_along(panel, times, part)
    count = min(len(rewards), _MAX_STEPS)
    for panel, values, label in (
        (panels[-2], rewards[:count], "reward"),
        (panels[-1], np.cumsum(rewards)[:count], "return so far"),
    ):
        style = dict(color=plots.GRAY, linewidth=1.2, drawstyle="steps-mid")
        panel.plot(times[:count], values, **style)
        plots.style(panel, label)
    panels[-1].set_xlabel("step", color=plots.GRAY)
    if count > 1:
        panels[-1].set_xlim(0, count - 1)  # of all panels
    end = "terminated" if bool(np.asarray(episodes.terminated)[0]) else "truncated"
    title = f"one episode with sampled actions, {end} after {len(rewards)} steps"
    if count < len(rewards):
        title += f", its first {count} steps"
    if len(parts) > len(shown):
        title += f", first {len(shown)} of {len(parts)} parts of the action"
    figure.suptitle(_join(env_name, title), color=plots.GRAY)
    return figure


def _draw_along(panel, x, part, integer=False):
    """Draws one part of the action over the steps or over one number of observations."""
    if isinstance(part, Choices):
        colors = _colors(len(part.values))
        if integer:
            bottom = np.cumsum(part.probs, axis=1) - part.probs
            for k, color in enumerate(colors):
                panel.bar(x, part.probs[:, k], 0.9, bottom[:, k], color=color)
        else:
            panel.stackplot(x, part.probs.T, colors=colors, step=None, linewidth=0)
        panel.set_ylim(0, 1)
        _list_values(panel, part.values, colors)
        plots.style(panel, f"probability\n{part.name}")
    else:
        color = plots.COLORS[0]
        low, high = part.mean - part.deviation, part.mean + part.deviation
        if integer:
            panel.errorbar(x, part.mean, part.deviation, fmt="o", color=color)
        else:
            label = "mean ± standard deviation"
            panel.fill_between(x, low, high, color=color, alpha=0.3, linewidth=0)
            panel.plot(x, part.mean, color=color, linewidth=1.5, label=label)
        if part.taken is not None:
            points = dict(s=6, color=plots.COLORS[1], linewidths=0, label="taken")
            panel.scatter(x, part.taken, **points)
        if not integer:
            options = dict(frameon=False, labelcolor=plots.GRAY, ncols=2)
            panel.legend(loc="lower right", bbox_to_anchor=(1, 0.97), **options)
        plots.style(panel, part.name)
    panel.margins(x=0 if len(x) > 1 else 0.05)


def _draw_map(agent, axes, visited, env_name, cells):
    """Draws the parts of the policy over all observations of one or two numbers."""
    grid = make_grid(agent.observation_space, axes)
    outputs, _ = agent.trainer.estimator.forward(grid)
    parts = describe(agent.trainer.estimator.head, outputs)[:_MAX_PANELS]
    is_flat = len(axes) == 1 and (cells is None or not axes[0].integer)
    height = 3.4 if is_flat else 5.0
    figure, panels = _figure(len(parts), height * len(parts) + 0.6)
    for panel, part in zip(panels, parts):
        if is_flat:
            _draw_along(panel, axes[0].points, part, axes[0].integer)
            panel.set_xlabel(axes[0].name, color=plots.GRAY)
        elif len(axes) == 1:
            _draw_states(panel, part, cells)
        else:
            _draw_plane(figure, panel, part, axes)
            _draw_visited(panel, axes, visited)
    figure.suptitle(_join(env_name, "the policy over its observations"), color=plots.GRAY)
    return figure


def _draw_plane(figure, panel, part, axes):
    """Draws a part over two numbers, the first one on the horizontal axis."""
    first, second = axes
    image = _draw_image(
        panel,
        part,
        (len(first.points), len(second.points)),
        (first.name, second.name),
        transpose=True,
        origin="lower",
        extent=[x for axis in axes for x in _edges(axis)],
        aspect="auto",
        interpolation="nearest",
    )
    if isinstance(part, Numbers):
        bar = figure.colorbar(image, ax=panel)
        bar.set_label(f"mean {part.name}", color=plots.GRAY)
        bar.ax.tick_params(colors=plots.GRAY)
        bar.outline.set_edgecolor(plots.GRAY)


def _draw_image(panel, part, shape, labels, transpose=False, **options):
    """Draws the most likely values or the means of a part at a grid of observations."""
    if isinstance(part, Choices):
        values = _most_likely(part)
        meaning = "most likely value, stronger if more probable"
        _list_values(panel, part.values, _colors(len(part.values)))
    else:
        values, meaning = part.mean, "mean"
    values = values.reshape(*shape, *values.shape[1:])
    values = values.swapaxes(0, 1) if transpose else values
    image = panel.imshow(values, cmap="viridis", **options)
    plots.style(panel, labels[1])
    panel.grid(visible=False)
    panel.set_xlabel(labels[0], color=plots.GRAY)
    panel.set_title(f"{part.name}: {meaning}", color=plots.GRAY, fontsize=10)
    return image


def _draw_visited(panel, axes, visited):
    """Draws the observations of episodes, if both axes are real numbers."""
    if any(axis.integer for axis in axes):
        return
    arrays = [np.reshape(x, [len(x), -1]) for x in keras.tree.flatten(visited)]
    x, y = (arrays[axis.leaf][:, axis.column] for axis in axes)
    inside = dict(xlim=panel.get_xlim(), ylim=panel.get_ylim())
    panel.scatter(x, y, s=2, color="black", alpha=0.4, linewidths=0)
    panel.set(**inside)


def _draw_states(panel, part, cells):
    """Draws a part over the cells of a grid of states, with its values as texts."""
    rows, columns = cells.shape
    _draw_image(panel, part, cells.shape, ("column", "row"))
    if isinstance(part, Choices):
        best = part.probs.argmax(1)
        texts = [f"{part.values[k]}: {p[k]:.2f}" for k, p in zip(best, part.probs)]
    else:
        texts = [f"{x:.3g}" for x in part.mean]
    box = dict(facecolor="white", alpha=0.6, linewidth=0, boxstyle="round,pad=0.15")
    place = dict(ha="center", va="center", fontsize=7, bbox=box)
    for state, (text, letter) in enumerate(zip(texts, cells.ravel())):
        if len(texts) <= _MAX_CELLS:
            label = f"{letter}\n{text}" if letter else text
            panel.text(state % columns, state // columns, label, **place)
    panel.set(xticks=range(columns), yticks=range(rows))


def _cells_of_states(env, env_kwargs):
    """Returns `[rows, columns]` texts, if the states of an environment are such cells.

    The map `desc` of FrozenLake contains a letter for each state. CliffWalking only has
    a `shape`, and its texts are empty. For other environments the result is `None`.
    """
    if not isinstance(env, (str, gym.envs.registration.EnvSpec)):
        return None
    gym_env = gym.make(env, disable_env_checker=True, **(env_kwargs or {}))
    space, plain = gym_env.observation_space, gym_env.unwrapped
    gym_env.close()
    if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
        return None
    letters = getattr(plain, "desc", None)
    if isinstance(letters, np.ndarray) and letters.dtype.kind in "SU":
        cells = letters.astype(str)
    else:
        shape = getattr(plain, "shape", None)
        is_shape = isinstance(shape, tuple) and all(isinstance(x, int) for x in shape)
        cells = np.full(shape if is_shape else (), "", str)
    return cells if cells.ndim == 2 and cells.size == space.n else None


class Axis(NamedTuple):
    """One number of an observation."""

    name: str
    leaf: int  # index of the array of the observation
    column: int  # index of the number in the flat array
    points: np.ndarray  # the values of the grid, in increasing order
    integer: bool


def count_numbers(space):
    """Returns how many numbers an observation of a Gymnasium space has."""
    leaves = keras.tree.flatten(spaces.to_nest(space))
    return sum(math.prod(leaf.shape) for leaf in leaves)


def find_axes(space, observations):
    """Returns a list of one or two `Axis`, or `None` if the space has more numbers.

    The ends of an axis are the bounds of the space. If a bound is infinite, they are
    the ends of the range of `observations`, moved outwards by a twentieth of the range.

    Args:
        space: Gymnasium space of the observations.
        observations: `[N, …]` arrays, nested like the space: observations of episodes.
    """
    if not 1 <= count_numbers(space) <= _MAX_AXES:
        return None
    leaves = keras.tree.flatten(spaces.to_nest(space))
    names = keras.tree.flatten(spaces.names(spaces.to_nest(space)))
    arrays = keras.tree.flatten(observations)
    axes = []
    for number, (leaf, name, array) in enumerate(zip(leaves, names, arrays)):
        rows = np.reshape(array, [len(array), -1])
        for index, (low, high, integer) in enumerate(_bounds(leaf)):
            label = f"{name}[{index}]" if math.prod(leaf.shape) > 1 else name
            column = rows[:, index].astype("float64")
            points = _points(low, high, integer, column, count_numbers(space))
            if points is None:
                return None
            axes.append(Axis(label, number, index, points, integer))
    return axes


def _bounds(leaf):
    """Yields low, high and whether the number is an integer, for each number."""
    if isinstance(leaf, gym.spaces.Discrete):
        return [(int(leaf.start), int(leaf.start + leaf.n - 1), True)]
    if isinstance(leaf, gym.spaces.MultiDiscrete):
        low = np.ravel(leaf.start)
        return [(a, a + n - 1, True) for a, n in zip(low, np.ravel(leaf.nvec))]
    if isinstance(leaf, gym.spaces.MultiBinary):
        return [(0, 1, True)] * math.prod(leaf.shape)
    integer = leaf.dtype.kind in "iu"
    return [(a, b, integer) for a, b in zip(np.ravel(leaf.low), np.ravel(leaf.high))]


def _points(low, high, integer, column, count):
    """Returns the points of an axis, or `None` if an integer axis has too many."""
    low, high = float(low), float(high)
    if not high - low < _MAX_BOUND:
        margin = max(0.05 * (column.max() - column.min()), 1e-3)
        low, high = column.min() - margin, column.max() + margin
    if not integer:
        return np.linspace(low, high, _POINTS[count])
    low, high = round(low), round(high)
    return np.arange(low, high + 1) if high - low < _MAX_VALUES else None


def make_grid(space, axes):
    """Returns the observations at all points of the axes, `[N, …]` nested arrays.

    The last axis varies fastest, so that a result `[N]` has the shape of the axes in
    their order.
    """
    leaves = keras.tree.flatten(spaces.to_nest(space))
    columns = np.meshgrid(*(axis.points for axis in axes), indexing="ij")
    count = columns[0].size
    arrays = [np.zeros([count, math.prod(leaf.shape)], leaf.dtype) for leaf in leaves]
    for column, axis in zip(columns, axes):
        arrays[axis.leaf][:, axis.column] = column.ravel()
    shaped = [x.reshape(count, *leaf.shape) for x, leaf in zip(arrays, leaves)]
    return keras.tree.pack_sequence_as(spaces.to_nest(space), shaped)


def _most_likely(part):
    """Returns `[N, 4]` colors with opacities: the most likely value and its probability.

    A probability of one is opaque. A uniform choice has three tenths of the opacity.
    """
    count = len(part.values)
    best = part.probs.argmax(1)
    colors = np.array(_colors(count))
    uniform = 1.0 / count
    excess = (part.probs.max(1) - uniform) / max(1.0 - uniform, 1e-9)
    return np.concatenate([colors[best], 0.3 + 0.7 * excess[:, None]], axis=1)


def _edges(axis):
    """Returns the ends of an axis, half a step outside of its first and last point."""
    points = axis.points
    half = (points[1] - points[0]) / 2 if len(points) > 1 else 0.5
    return points[0] - half, points[-1] + half


def _colors(count):
    """Returns red, green and blue for each of `count` values of an action."""
    if count <= len(plots.COLORS):
        return [
            tuple(x / 255 for x in bytes.fromhex(c[1:])) for c in plots.COLORS[:count]
        ]
    hues = np.linspace(0.0, 1.0, count, endpoint=False)
    return [colorsys.hls_to_rgb(hue, 0.52, 0.62) for hue in hues]


def _list_values(panel, values, colors):
    """Adds a legend of the values of a discrete action, if there are not too many."""
    if len(values) <= _MAX_LEGEND:
        squares = [panel.scatter([], [], color=color, marker="s") for color in colors]
        panel.legend(
            squares,
            values,
            frameon=False,
            labelcolor=plots.GRAY,
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            reverse=True,
        )


def _figure(count, height, heights=None):
    """Returns a figure with a transparent background, and its panels, one per row."""
    options = dict(squeeze=False, height_ratios=heights, sharex=heights is not None)
    figure, panels = plots.panels(count, 1, (_WIDTH, height), **options)
    return figure, panels[:, 0]


def _join(env_name, text):
    return f"{env_name}: {text}" if env_name else text


class Choices(NamedTuple):
    """The probabilities of the K values of a discrete action, at N observations."""

    name: str
    values: list  # of K texts
    probs: np.ndarray  # [N, K], one row sums to one


class Numbers(NamedTuple):
    """Mean and standard deviation of one real number of an action, at N observations.

    All numbers are in the units of the environment, after clipping and rounding.
    """

    name: str
    mean: np.ndarray  # [N]
    deviation: np.ndarray  # [N]
    taken: Any = None  # [N], the numbers that were taken, or `None`


def describe(head, outputs, actions=None):
    """Returns the parts of the action distribution, a list of `Choices` and `Numbers`.

    A `Categorical` is one `Choices`. A `MultiCategorical` and a `Bernoulli` have one
    `Choices` for each of their actions. The `Choices` of a `Multinomial` are the expected
    shares of its categories. A head for real numbers has one `Numbers` for each number.
    Mean and deviation of a Gaussian head are integrals over its noise, computed by the
    trapezoidal rule. Those of a `Beta` are closed forms, and those of a custom head are
    estimated from 256 samples.

    Args:
        head: A built `heads.Head`.
        outputs: `[N, P]` float tensor, the masked policy outputs for N observations.
        actions: N raw actions, nested like the actions of the head, or `None`.
    """
    if not isinstance(head, heads.Composite):
        return _parts("action", head, outputs, actions)
    sizes = [leaf.outputs_size for leaf in head.leaves]
    taken = [None] * len(sizes) if actions is None else keras.tree.flatten(actions)
    leaves = zip(head.names, head.leaves, tf.split(outputs, sizes, axis=-1), taken)
    return [part for leaf in leaves for part in _parts(*leaf)]


def _parts(name, head, outputs, actions):
    """Returns the parts of a head that is not a `Composite`.

    A subclass may have another distribution. Therefore only the heads of the package are
    described by their parameters, and others by their distribution or by samples.
    """
    if isinstance(head, heads.Categorical):
        distribution, indices = head.distribution(outputs), range(head.size)
        log_probs = [distribution.log_prob([i] * len(outputs)) for i in indices]
        return _choices(name, [np.exp(np.stack(log_probs, axis=-1))], [head.start])
    if type(head) not in (heads.MultiCategorical, heads.Bernoulli, heads.Multinomial):
        return _numbers(name, head, outputs, actions)
    probs = head.parameters(outputs)["probs"].numpy()
    if type(head) is heads.MultiCategorical:
        parts = np.split(probs, np.cumsum(head.sizes)[:-1], axis=-1)
        return _choices(name, parts, np.broadcast_to(head.start, len(parts)))
    if type(head) is heads.Bernoulli:
        parts = [np.stack([1.0 - on, on], axis=-1) for on in probs.T]
        return _choices(name, parts, [0] * head.n)
    return _choices(f"{name}, expected share", [probs], [0])


def _choices(name, parts, starts):
    """Returns a `Choices` for each array of probabilities and its first value."""
    return [
        Choices(
            _indexed(name, i, len(parts)),
            [str(start + k) for k in range(probs.shape[1])],
            probs,
        )
        for i, (probs, start) in enumerate(zip(parts, starts, strict=True))
    ]


def _numbers(name, head, outputs, actions):
    """Returns `Numbers` of a head for real numbers, or of a custom head."""
    if type(head) is heads.Beta:
        mean, deviation = _beta_moments(head, outputs)
    elif isinstance(head, gaussian.GaussianHead):
        mean, deviation = _normal_moments(head, outputs)
    else:
        mean, deviation = _sampled_moments(head, outputs)
    count = mean.shape[1]
    taken = [None] * count if actions is None else _to_rows(head, actions).T
    columns = enumerate(zip(mean.T, deviation.T, taken, strict=True))
    return [Numbers(_indexed(name, i, count), *column) for i, column in columns]


def _beta_moments(head, outputs):
    """Returns mean and deviation of a + (b - a) y with y ~ Beta(α, β)."""
    alpha, beta = (x.numpy() for x in head.parameters(outputs).values())
    total = alpha + beta
    deviation = np.sqrt(alpha * beta / (total + 1.0)) / total
    low, high = (head.to_environment(tf.constant([[x] * head.size])) for x in (0.0, 1.0))
    low, high = (np.reshape(x, [1, head.size]) for x in (low, high))
    return low + (high - low) * alpha / total, (high - low) * deviation


def _normal_moments(head, outputs):
    """Returns the moments of the action, which are integrals over its normal noise."""
    weights = np.exp(-(_NODES**2) / 2)
    weights /= weights.sum()
    rows = [
        _to_rows(head, head.sample(outputs, tf.fill([len(outputs), head.size], node)))
        for node in _NODES.astype(outputs.dtype.as_numpy_dtype)
    ]
    mean = np.tensordot(weights, rows, axes=1)
    variance = np.tensordot(weights, (rows - mean) ** 2, axes=1)
    return mean, np.sqrt(variance)


def _sampled_moments(head, outputs):
    rows = []
    for seed in range(_SAMPLES):
        noise = tensor_noise.stateless_noise(
            seed, head.noise.kind, [len(outputs), *head.noise.shape], outputs.dtype, 0
        )
        rows.append(_to_rows(head, head.sample(outputs, noise)))
    return np.mean(rows, axis=0), np.std(rows, axis=0)


def _to_rows(head, actions):
    """Returns raw actions as `[N, A]` float64, in the units of the environment."""
    env_actions = np.asarray(head.to_environment(tf.convert_to_tensor(actions)))
    return env_actions.reshape(len(env_actions), -1).astype("float64")


def _indexed(name, index, count):
    return f"{name} {index}" if count > 1 else name
