"""One example of each head, baseline, tensor environment and kind of policy.

The suites make their cases from these tables, so a part with an example here is tested by
all of them. `test_parts.py` names those without one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce import envs
from tf_reinforce import heads
from tf_reinforce.heads import box
from tf_reinforce.testing import enumeration


class Example(NamedTuple):
    """Arguments of a class that between them change each default."""

    kind: type
    cases: Callable[[], list[dict]]  # new objects at each call
    space: Any = None  # an action space of the head from the first case
    mask: Any = None  # a flat action mask of that head, without one of the actions

    def make(self, case: int = 0, **options: Any) -> Any:
        """Returns a new part from one of the cases."""
        return self.kind(**self.cases()[case], **options)


BOX = dict(size=2, low=[-1.0, -2.0], high=[1.0, 3.0], shape=(1, 2))
WHOLE = {**BOX, "low": [-1, -2], "high": [1, 3], "integer": True}
BOX_SPACE = gym.spaces.Box(np.array([BOX["low"]], "f"), np.array([BOX["high"]], "f"))


def gaussian(kind):
    cases = [BOX, WHOLE, {**BOX, "state_dependent_scale": True}]
    cases = [{**case, "initial_scale": [0.5, 0.7]} for case in cases]
    return Example(kind, lambda: cases, BOX_SPACE)


def composites():
    whole = {"b": heads.Bernoulli(1), "a": (heads.Categorical(2, start=1),)}
    real = heads.Gaussian(1), heads.Categorical(2)
    return [dict(heads=whole), dict(heads=real)]


@keras.saving.register_keras_serializable("parts")
def not_equal(earlier):
    """A mask of three categories, without the category of the first part."""
    return tf.range(3, dtype=tf.int64) != earlier["action_0"][..., None]


def autoregressives():
    table = {"b": heads.Categorical(3, start=1), "a": (heads.Pointer(2, key_dim=2),)}
    numbers = heads.Categorical(3), heads.Categorical(3)
    real = heads.Gaussian(1), heads.Categorical(2)
    order = ["b", "a_0"]
    return [
        dict(parts=table, order=order, masks={"a_0": "b"}, hidden=3),
        dict(parts=numbers, masks={"action_1": not_equal}, shape=(1, 2)),
        dict(parts=real, hidden=2),
    ]


HEADS = {
    "Autoregressive": Example(
        heads.Autoregressive,
        autoregressives,
        gym.spaces.Dict(
            b=gym.spaces.Discrete(3, start=1),
            a=gym.spaces.Tuple([gym.spaces.Discrete(2)]),
        ),
        [1, 0, 1, 1, 0, 0, 1, 1, 0],  # the choice of the last, empty row is illegal
    ),
    "Bernoulli": Example(
        heads.Bernoulli,
        lambda: [dict(n=3, shape=(3, 1))],
        gym.spaces.MultiBinary((3, 1)),
        [0, 1, 2],  # off, on, free
    ),
    "Beta": Example(heads.Beta, lambda: [BOX, WHOLE], BOX_SPACE),
    "Categorical": Example(
        heads.Categorical,
        lambda: [dict(size=3, start=-2)],
        gym.spaces.Discrete(3, start=-2),
        [1, 0, 1],
    ),
    "ClippedGaussian": gaussian(heads.ClippedGaussian),
    "Composite": Example(
        heads.Composite,
        composites,
        gym.spaces.Dict(
            b=gym.spaces.MultiBinary(1),
            a=gym.spaces.Tuple([gym.spaces.Discrete(2, start=1)]),
        ),
        [1, 0, 2],
    ),
    "Gaussian": gaussian(heads.Gaussian),
    "MultiCategorical": Example(
        heads.MultiCategorical,
        lambda: [dict(sizes=[2, 3], start=[1, -1], shape=(1, 2))],
        gym.spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]),
        [1, 1, 0, 1, 1],
    ),
    "Multinomial": Example(
        heads.Multinomial,
        lambda: [dict(categories=3, trials=2)],
        gym.spaces.MultiDiscrete([3, 3, 3]),
        [1, 0, 1],
    ),
    "Pointer": Example(
        heads.Pointer,
        lambda: [dict(size=4, key_dim=2, start=3)],
        gym.spaces.Discrete(4, start=3),
        [1, 0, 1, 1],
    ),
    "TanhGaussian": gaussian(heads.TanhGaussian),
}
INTEGER_HEADS = [x for x in HEADS if enumeration.is_integer(HEADS[x].make())]
BOX_HEADS = [x for x in HEADS if issubclass(HEADS[x].kind, box.BoxHead)]
HEAD_CASES = [(x, case) for x in HEADS for case in range(len(HEADS[x].cases()))]


def head(example, case=0, /, **options):
    """Returns a new, built head, whose parts depend on each other if they can."""
    result = HEADS[example].make(case, **options)
    result.build((None, result.outputs_size))
    return dependent(result)


def dependent(head, scale=1.0):
    """Sets the weights of zeros of a head to random numbers."""
    rng = np.random.default_rng(5)
    for variable in head.trainable_variables:
        if not variable.numpy().any():
            variable.assign(rng.normal(0.0, scale, variable.shape))
    return head


def noise_of(head, count, dtype="float64", seed=0):
    """Returns noise for `count` samples of a head."""
    rng = np.random.default_rng(seed)
    draws = {"uniform": rng.random, "normal": rng.standard_normal}
    return keras.tree.map_structure(
        lambda x: tf.constant(draws[x.kind]((count, *x.shape)), dtype), head.noise
    )


def values():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    own = dict(model=model, optimizer=keras.optimizers.SGD(0.1))
    return [
        {**own, "passes": 3, "minibatch_size": 5, "scale": 2.0},
        dict(loss_weight=0.2),
    ]


BASELINES = {
    "LeaveOneOut": Example(baselines.LeaveOneOut, lambda: [dict(group_size=2)]),
    "Mean": Example(baselines.Mean, lambda: [{}]),
    "MovingAverage": Example(baselines.MovingAverage, lambda: [dict(decay=0.3)]),
    "TimeStep": Example(baselines.TimeStep, lambda: [dict(horizon=7, decay=0.3)]),
    "Value": Example(baselines.Value, values),
    "Zero": Example(baselines.Zero, lambda: [{}]),
}

STAY, WIN = (0.5, 0, 0.0, False), (0.5, 1, 1.0, True)
TABLE = [[[(1.0, 1, -1.0, True)], [STAY, WIN]], [[STAY, WIN], [(1.0, 0, 0.5, False)]]]
ENVS = {
    name: kind
    for name, kind in vars(envs).items()
    if isinstance(kind, type) and issubclass(kind, envs.TensorEnv)
}
del ENVS["TensorEnv"]
ENVS["Tabular"] = lambda: envs.Tabular(TABLE, [0.5, 0.5], 9, [[1, 1], [0, 1]])
