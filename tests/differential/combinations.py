"""Draws random agents and records: one combination of all options for each integer."""

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
# "bfloat16": hidden layers in bfloat16, outputs in float32.
DTYPES = ("float32", "float64", "mixed_float16", "mixed_bfloat16", "bfloat16")

OTHER_OPTIMIZERS = ("adam", "loss_scaled")  # only for pairs without the definition

# The probability of each additional pair. They take seconds, unlike the gradient.
PAIRS = {
    "resumed": 0.04,
    "acting": 0.04,
    "environments": 0.04,
    "workers": 0.01,
    "engines": 0.01,
    "seeds": 0.005,
}
ENVIRONMENT_PAIRS = ("acting", "environments", "workers", "engines", "seeds")


@dataclasses.dataclass(frozen=True)
class Combination:
    """The options of one agent, of its records, and of the comparison."""

    seed: int  # of weights and records
    pair: str | None  # the comparison in addition to the gradient
    policy: str
    head: str
    head_dtype: bool  # whether the head receives the type of the outputs
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
    ratio_clip: float | tuple[float, float]
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
    updates: int  # number of consecutive updates
    traced: bool  # whether `agent.update` runs the updates as graphs
    spaces: bool  # whether the agent is built from spaces, not from shapes
    max_kl: float | None

    @property
    def recurrent(self):
        return self.policy in RECURRENT


def draw(seed, pair=...):
    """Returns the combination of an integer; `pair` replaces the pair that is drawn.

    >>> draw(3) == draw(3), draw(3) == draw(4)
    (True, False)
    """
    rng = np.random.default_rng([7, seed])
    combination = None
    while combination is None or excluded(combination):
        combination = _draw(rng, seed, pair)
    return combination


def _draw(rng, seed, pair):
    def choose(*values):
        return values[rng.integers(len(values))]

    def flip(probability):
        return bool(rng.random() < probability)

    if pair is ...:
        names, probabilities = [*PAIRS, None], [*PAIRS.values()]
        pair = names[rng.choice(len(names), p=[*probabilities, 1 - sum(probabilities)])]
    # Recurrent policies take five times as long in eager mode.
    policy = choose(*RECURRENT) if flip(0.15) else choose(*PLAIN)
    head, baseline = choose(*HEADS), choose(*BASELINES)
    dtype = choose("float64", "float64", "float32", "float32", *DTYPES)
    has_values = baseline in ("value", "shared")
    returns = choose("to_go", "to_go", "whole")
    groups = baseline == "groups"
    rows = int(rng.integers(1, 6))
    episodes = choose(2, 2, 4) if groups else int(rng.integers(1, 6))
    # Gradient steps are slow, so that a pass has two or three of them.
    size = max(1, -(-episodes * rows // choose(2, 3)))
    kind = choose("normal", "normal", "whole", "large", "constant", "none")
    return Combination(
        seed=seed,
        pair=pair,
        policy=policy,
        head=head,
        head_dtype=flip(0.5),
        baseline=baseline,
        dtype=dtype,
        action_mask=choose(None, "info", "observation") if head in CHOICES else None,
        gamma=choose(1.0, 0.9, 0.5, 0.0, round(rng.uniform(0.8, 1.0), 3)),
        gae_lambda=choose(1.0, 0.7, 0.0) if has_values and returns == "to_go" else 1.0,
        returns=returns,
        discount_states=flip(0.4),
        scale_advantages=choose(None, None, "batch", "running"),
        scale_rewards=flip(0.3),
        mean_over=choose("episodes", "episodes", "steps"),
        on_truncation=choose("bootstrap", "bootstrap", "terminal", "drop"),
        minibatch_size=choose(None, None, None, None, None, size, size, 50),
        passes=choose(1, 1, 1, 1, 1, 1, 1, 1, 2, 3),
        ratio_clip=choose(1.0, 1.25, 2.0, 8.0, (0.2, 0.2), (0.1, 0.5)),
        entropy_coef=choose(0.0, 1 / 64, 5 / 16),
        entropy_schedule=flip(0.3),
        normalize_observations=flip(0.4),
        decay=choose(0.0, 0.5, 0.9, 1.0),
        horizon=choose(1, 2, 3, 1000),
        value_epochs=choose(1, 1, 1, 1, 2, 3),
        value_minibatch=choose(None, None, size, 50),
        value_scale=choose(1.0, 1.0, 0.25, 30.0),
        loss_weight=choose(0.5, 0.0, 2.0),
        optimizer=choose("sgd", "momentum", "clipped", *OTHER_OPTIMIZERS),
        learning_rate=choose(1 / 512, 1 / 64, 1 / 8) / (1024 if kind == "large" else 1),
        episodes=episodes,
        rows=rows,
        padding=choose(0, 0, 1, 3),
        reward_kind=kind,
        updates=choose(1, 1, 1, 1, 1, 1, 1, 1, 2, 3),
        traced=flip(0.02),
        spaces=flip(0.5),
        # A generator of its own leaves the other values of known seeds unchanged.
        # In half precision, a divergence is not accurate enough to compare it.
        max_kl=(None, 1e-4, 1e-2)[np.random.default_rng([8, seed]).integers(3)]
        if dtype in ("float32", "float64")
        else None,
    )


def excluded(c):
    """Returns whether a combination raises an error or has a known fault."""
    return any(
        (
            # Only these policies have a mask in their observation.
            c.action_mask == "observation" and c.policy not in ("functional", "gru"),
            # Environments return nested masks; these policies have one array for them.
            c.action_mask == "observation"
            and c.head in ("composite", "nested")
            and c.pair in ("environments", "workers"),
            # Only the space describes the integers of these observations.
            not c.spaces and c.policy in ("dict", "pixels", "choices", "dict_gru"),
            not c.spaces and c.action_mask == "observation",
            # Keras cannot build recurrent layers in bfloat16: TensorFlow has no `qr`.
            c.recurrent and c.dtype == "bfloat16",
            # Keras fails to add squares of gradients of two types for a clipnorm.
            c.optimizer == "clipped" and c.dtype == "bfloat16",
            # An error: averages of Adam stay at zero in bfloat16.
            c.optimizer == "adam" and c.dtype == "bfloat16",
            # An error: workers act with LiteRT, which computes in float32 only.
            c.pair == "workers" and c.dtype != "float32",
            # Two outputs require a functional or a subclassed model.
            c.baseline == "shared" and c.policy == "sequential",
            # The definition contains neither the moments of Adam nor loss scaling.
            c.optimizer in ("adam", "loss_scaled") and not c.pair,
            # An error: convolutions of many seeds cannot be stacked.
            c.pair == "seeds" and c.policy == "pixels",
            # The tensor environment of the comparison has no masks.
            c.action_mask and c.pair in ("engines", "seeds"),
            # The two engines draw the permutations from different streams.
            c.pair == "engines" and (c.minibatch_size or c.value_minibatch),
            # In an environment, an agent is built from the spaces.
            not c.spaces and c.pair in ENVIRONMENT_PAIRS,
        )
    )
