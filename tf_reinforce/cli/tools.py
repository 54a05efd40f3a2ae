"""The commands without a run: `check-env`, `explain`, `presets`."""

import json as json_
import pathlib

from tf_reinforce.cli import agent_files
from tf_reinforce.cli.options import EnvArguments
from tf_reinforce.settings import toml_files
from tf_reinforce.settings.schema import Count
from tf_reinforce.settings.schema import Finite
from tf_reinforce.settings.schema import Seed
from tf_reinforce.support import startup


def check_env(
    env: str,
    *,
    env_arg: EnvArguments = (),
    episodes: Count = 5,
    seed: Seed = 0,
    max_episode_steps: Count | None = None,
    action_mask: str | None = None,
):
    """Check an environment, and explain what to correct.

    Collects episodes with a random policy, as a training does, and prints errors,
    warnings and notes. The last notes say how long a step takes, and recommend values for
    --num-envs and --workers. The exit code is 1 if there is an error.
    docs/environments.md lists the rules.

    Args:
        env: Environment id, also module:Id-v0.
        max_episode_steps: Time limit (that of the environment).
        action_mask: Where to find the mask of legal actions, for example
            info/action_mask.
    """
    env = agent_files.find_env(env)
    startup.import_tensorflow()
    from tf_reinforce.testing import environments

    report = environments.check_env(
        env,
        episodes=episodes,
        seed=seed,
        env_kwargs=dict(env_arg),
        max_episode_steps=max_episode_steps,
        action_mask=action_mask,
    )
    print(report)
    return int(bool(report.errors))


def explain(
    *,
    probs: list[float] | None = None,
    logits: list[float] | None = None,
    action: Finite | None = None,
    counts: list[float] | None = None,
    mean: list[float] | None = None,
    std: list[float] | None = None,
    sample: list[float] | None = None,
):
    """Print the gradient of one action's log-probability.

    This gradient is the characteristic eligibility, d log-probability / d parameter. It
    is computed twice, in closed form and by automatic differentiation.

    For categories, give --probs or --logits together with --action or --counts. If you
    give only --counts, all probabilities are equal. For a Gaussian, give --mean, --std
    and --sample.

    Args:
        probs: Relative probabilities.
        logits: Their logarithms.
        action: The sampled category, from 0.
        counts: How often each category was sampled.
        mean: Mean of a diagonal Gaussian.
        std: Its standard deviations.
        sample: A sample of the Gaussian.
    """
    arguments = {name: value for name, value in locals().items() if value is not None}
    startup.import_tensorflow()
    from tf_reinforce.functional import explanation

    print(explanation.text(**arguments))
    return 0


def presets(name: str | None = None, *, json: bool = False):
    """List the presets and the returns that they reach.

    The returns were measured as described in docs/presets.md and docs/results.md. With
    NAME, the settings of this preset are printed in the form of a preset file.

    Args:
        name: Name of a preset.
        json: Print JSON.
    """
    names = toml_files.names() if name is None else [name]
    found = {name: toml_files.read(name) for name in names}
    if json:
        print(json_.dumps(found if name is None else found[name], indent=2))
    elif name is not None:
        is_ours = name in toml_files.names()
        path = toml_files.FOLDER / f"{name}.toml" if is_ours else pathlib.Path(name)
        print(path.read_text("utf-8").rstrip())
    else:
        width = max(map(len, found))
        print(f"{'preset':<{width}}  mean return of the trained policy")
        for name, settings in found.items():
            print(f"{name:<{width}}  {settings['result']}")
    return 0
