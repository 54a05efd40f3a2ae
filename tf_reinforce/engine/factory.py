"""Builds a head, a baseline and learning rates from the settings of a preset."""

import keras

from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.policies import default_policy
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import schema


def build_parts(settings, observation_space, action_space, seed):
    """Builds the head, the baseline and the learning rates that settings describe.

    Args:
        settings: Dict of arguments of `Reinforce.for_env`. The values of `head`,
            `baseline` and `learning_rate` may be written as in a preset file.
        observation_space, action_space: `gymnasium.Space`.
        seed: Int, which determines the initial weights of a value network.

    Returns:
        A dict of the settings, in which `head`, `baseline` and `learning_rate` are values
        that the constructors of `Reinforce` and `Adam` accept; and a list with the tuple
        `(optimizer, first, last)` for each linear learning rate.

    Raises:
        ValueError, TypeError: If a setting is invalid.
    """
    settings = dict(settings)
    first, last = _learning_rates(settings["learning_rate"])
    baseline = settings["baseline"]
    normalizes = settings.get("normalize_observations", False)
    baseline, baseline_rates = _baseline(baseline, observation_space, seed, normalizes)
    head = settings.get("head")
    if not isinstance(head, heads.Head):
        head = _head(head, action_space)
    schedules = [("optimizer", first, last)]
    if baseline_rates:
        schedules.append(("baseline.optimizer", *baseline_rates))
    settings.update(head=head, baseline=baseline, learning_rate=first)
    return settings, [schedule for schedule in schedules if schedule[1] != schedule[2]]


def _learning_rates(setting):
    """Returns the first and the last learning rate that a setting describes."""
    if isinstance(setting, keras.optimizers.schedules.LearningRateSchedule):
        return setting, setting
    config.check_option("agent", "learning_rate", setting)
    return tuple(map(float, config.learning_rates(setting)))


def _baseline(setting, observation_space, seed, normalizes):
    """Returns the `baseline` for `Reinforce`, and the learning rates of its network.

    A value network has a first and a last learning rate. For any other baseline, the
    tuple of learning rates is empty.
    """
    options = default_settings.value_network(setting)
    if options is None:
        return None if setting == "none" else setting, ()
    rates = tuple(map(float, config.learning_rates(options["learning_rate"])))
    # The same architecture as the policy, with other initial weights.
    value_seed = int(seeding.generator(seed, "weights", 1).integers(2**31))
    model = default_policy.default_policy(
        observation_space,
        options["hidden"],
        1,
        value_seed,
        name="value_network",
        is_normalized=normalizes,
    )
    optimizer = keras.optimizers.Adam(rates[0])
    names = "passes", "minibatch_size", "scale"
    arguments = {name: options[name] for name in names if name in options}
    return baselines.Value(model, optimizer, **arguments), rates


def _head(setting, action_space):
    """Returns the head that a setting describes, or the default head of the space."""
    if setting is None:
        return heads.for_space(action_space)
    kind, options = default_settings.head_settings(setting, action_space)
    head_class = getattr(heads, kind)
    schema.expect_keys(f"The head {kind}", options, head_class.setting_names)
    return head_class.from_space(action_space, **options)
