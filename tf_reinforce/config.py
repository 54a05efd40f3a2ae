"""Lists the names of the options that several modules accept."""

# What the estimator reads of an agent's settings.
ESTIMATOR = (
    "gamma",
    "gae_lambda",
    "returns",
    "discount_states",
    "scale_advantages",
    "mean_over",
    "on_truncation",
    "entropy_coef",
    "ratio_clip",
)

# The keywords of `Reinforce` beside its parts.
AGENT = (
    *ESTIMATOR,
    "scale_rewards",
    "minibatch_size",
    "passes",
    "normalize_observations",
    "action_mask",
)

# How much `fit` trains and collects.
FIT = (
    "epochs",
    "steps",
    "episodes_per_epoch",
    "steps_per_epoch",
    "num_envs",
    "workers",
    "max_episode_steps",
)
