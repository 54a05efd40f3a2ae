"""Agents at random: everything that is drawn, from one whole number."""

import dataclasses

import numpy as np

RECURRENT = (
    "gru",
    "lstm",
    "simple_rnn",
    "cell",
    "stacked",
    "masking",
    "learned",
    "dict_gru",
)
PLAIN = (
    "sequential",
    "functional",
    "subclassed",
    "dict",
    "tuple",
    "pixels",
    "choices",
    "regularised",
    "frozen",
    "normed",
)
HEADS = (
    "categorical",
    "multi",
    "bernoulli",
    "multinomial",
    "gaussian",
    "gaussian_state",
    "gaussian_whole",
    "tanh",
    "tanh_state",
    "clipped",
    "clipped_half",
    "clipped_state",
    "clipped_whole",
    "beta",
    "beta_whole",
    "composite",
    "nested",
)
CHOICES = ("categorical", "multi", "bernoulli", "multinomial", "composite", "nested")
BASELINES = (
    None,
    "leave_one_out",
    "groups",
    "mean",
    "moving_average",
    "time_step",
    "value",
    "shared",
)
# "bfloat16": hidden layers in it, and outputs in float32.
DTYPES = ("float32", "float64", "mixed_float16", "mixed_bfloat16", "bfloat16")

OTHER_OPTIMIZERS = ("adam", "loss_scaled")  # for pairs that need no definition

# How often each pair beside the gradient is drawn: they cost seconds, it does not.
PAIRS = {
    "resumed": 0.04,
    "acting": 0.04,
    "environments": 0.04,
    "workers": 0.01,
    "engines": 0.01,
    "seeds": 0.005,
}
PLAYING = ("acting", "environments", "workers", "engines", "seeds")


@dataclasses.dataclass(frozen=True)
class Combination:
    """One agent, what it learns from, and what it is compared with."""

    seed: int  # of weights and records
    pair: str | None  # what is compared beside the gradient
    policy: str
    head: str
    head_dtype: bool  # whether the head is told the type of the outputs
    baseline: str | None
    dtype: str
    action_mask: str | None
    gamma: float
    gae_lambda: float
    returns: str
    discount_states: bool
    scale_advantages: str | None
    scale_rewards: bool
    mean_over: str
    on_truncation: str
    minibatch_size: int | None
    passes: int
    ratio_clip: float
    entropy_coef: float
    entropy_schedule: bool
    normalize_observations: bool
    decay: float  # of moving averages
    horizon: int
    value_epochs: int
    value_minibatch: int | None
    value_scale: float
    loss_weight: float
    optimizer: str
    learning_rate: float
    episodes: int
    rows: int
    padding: int
    reward_kind: str
    updates: int  # made one after the other
    traced: bool  # the updates as graphs, as `agent.update` makes them
    spaces: bool  # whether the agent knows them, or is built from the record

    @property
    def recurrent(self):
        return self.policy in RECURRENT


def draw(seed, pair=...):
    """The combination of a number: `pair` overrules what would be compared.

    >>> draw(3) == draw(3), draw(3) == draw(4)
    (True, False)
    """
    rng = np.random.default_rng([7, seed])
    drawn = None
    while drawn is None or excluded(drawn):
        drawn = _draw(rng, seed, pair)
    return drawn


def _draw(rng, seed, pair):
    def of(*values):
        return values[rng.integers(len(values))]

    def chance(probability):
        return bool(rng.random() < probability)

    if pair is ...:
        names, shares = [*PAIRS, None], [*PAIRS.values()]
        pair = names[rng.choice(len(names), p=[*shares, 1 - sum(shares)])]
    # Recurrent policies take five times as long, in eager mode.
    policy = of(*RECURRENT) if chance(0.15) else of(*PLAIN)
    head, baseline = of(*HEADS), of(*BASELINES)
    dtype = of("float64", "float64", "float32", "float32", *DTYPES)
    valued = baseline in ("value", "shared")
    returns = of("to_go", "to_go", "whole")
    groups = baseline == "groups"
    rows = int(rng.integers(1, 6))
    episodes = of(2, 2, 4) if groups else int(rng.integers(1, 6))
    # Each gradient step takes its time: two or three in a pass, and few passes.
    size = max(1, -(-episodes * rows // of(2, 3)))
    kind = of("normal", "normal", "whole", "large", "constant", "none")
    return Combination(
        seed=seed,
        pair=pair,
        policy=policy,
        head=head,
        head_dtype=chance(0.5),
        baseline=baseline,
        dtype=dtype,
        action_mask=of(None, "info", "observation") if head in CHOICES else None,
        gamma=of(1.0, 0.9, 0.5, 0.0, round(rng.uniform(0.8, 1.0), 3)),
        gae_lambda=of(1.0, 0.7, 0.0) if valued and returns == "to_go" else 1.0,
        returns=returns,
        discount_states=chance(0.4),
        scale_advantages=of(None, None, "batch", "running"),
        scale_rewards=chance(0.3),
        mean_over=of("episodes", "episodes", "steps"),
        on_truncation=of("bootstrap", "bootstrap", "terminal", "drop"),
        minibatch_size=of(None, None, None, None, None, size, size, 50),
        passes=of(1, 1, 1, 1, 1, 1, 1, 1, 2, 3),
        ratio_clip=of(1.0, 1.25, 2.0, 8.0),
        entropy_coef=of(0.0, 1 / 64, 5 / 16),
        entropy_schedule=chance(0.3),
        normalize_observations=chance(0.4),
        decay=of(0.0, 0.5, 0.9, 1.0),
        horizon=of(1, 2, 3, 1000),
        value_epochs=of(1, 1, 1, 1, 2, 3),
        value_minibatch=of(None, None, size, 50),
        value_scale=of(1.0, 1.0, 0.25, 30.0),
        loss_weight=of(0.5, 0.0, 2.0),
        optimizer=of("sgd", "momentum", "clipped", *OTHER_OPTIMIZERS),
        learning_rate=of(1 / 512, 1 / 64, 1 / 8) / (1024 if kind == "large" else 1),
        episodes=episodes,
        rows=rows,
        padding=of(0, 0, 1, 3),
        reward_kind=kind,
        updates=of(1, 1, 1, 1, 1, 1, 1, 1, 2, 3),
        traced=chance(0.02),
        spaces=chance(0.5),
    )


def excluded(c):
    """What is not drawn: what is refused, and faults that are known. One place."""
    return any(
        (
            # Only these policies have a place for a mask in their observation.
            c.action_mask == "observation" and c.policy not in ("functional", "gru"),
            # An environment gives nested masks; these policies have one place for them.
            c.action_mask == "observation"
            and c.head in ("composite", "nested")
            and c.pair in ("environments", "workers"),
            # The whole numbers of these observations are known from their space.
            not c.spaces and c.policy in ("dict", "pixels", "choices", "dict_gru"),
            not c.spaces and c.action_mask == "observation",
            # Keras cannot begin recurrent layers in bfloat16: TensorFlow has no `qr`.
            c.recurrent and c.dtype == "bfloat16",
            # Keras adds up squares of gradients of two types for a clipnorm, and fails.
            c.optimizer == "clipped" and c.dtype == "bfloat16",
            # Refused: averages of Adam stay at zero in bfloat16.
            c.optimizer == "adam" and c.dtype == "bfloat16",
            # Refused: workers act through LiteRT, which computes in float32 alone.
            c.pair == "workers" and c.dtype != "float32",
            # Two outputs need a functional or a subclassed model.
            c.baseline == "shared" and c.policy == "sequential",
            # The definition of an update has no moments of Adam, and scales no loss.
            c.optimizer in ("adam", "loss_scaled") and not c.pair,
            # Refused: convolutions of many seeds cannot be stacked.
            c.pair == "seeds" and c.policy == "pixels",
            # Masks are for the host.
            c.action_mask and c.pair in ("engines", "seeds"),
            # The engines draw the order of minibatches from streams of their own.
            c.pair == "engines" and (c.minibatch_size or c.value_minibatch),
            # What plays in an environment knows its spaces.
            not c.spaces and c.pair in PLAYING,
        )
    )
