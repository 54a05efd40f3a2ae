"""Defines the command line: `tf-reinforce`, also `python -m tf_reinforce`.

Everything heavy is imported inside the verbs, so that `--help` answers at once.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys

from tf_reinforce import config
from tf_reinforce import version

INTERRUPTED = 130

# What a training takes where neither a preset nor an option says.
DEFAULTS = {
    "gamma": 0.99,
    "learning_rate": 1e-2,
    "hidden": [64, 64],
    "baseline": "leave_one_out",
    "entropy_coef": 0.0,
    "normalize_observations": False,
}

BASELINES = ("leave_one_out", "mean", "moving_average", "time_step", "value", "none")

# Options of the command line, and the settings they override.
AGENT = {name: name for name in (*DEFAULTS, "head")}
FIT = {name: name for name in config.FIT}
EVALUATION = {"target_return": "target", "max_episode_steps": "max_episode_steps"}


def main(arguments=None):
    """Runs one verb; returns the exit code.

    Returns:
        0; 1 when the environment or the numbers failed; 2 for a wrong request;
        130 after Ctrl-C.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(list(map(_shielded, arguments)))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return options.verb(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        print(f"tf-reinforce: {error}", file=sys.stderr)
        return code


def _shielded(argument):
    """Negative numbers with a space in front, lest argparse take -1e-3 for an option."""
    try:
        float(argument)
    except ValueError:
        return argument
    return f" {argument}" if argument.startswith("-") else argument


def _exit_code(error):
    """The exit code for an error that explains itself; `None` for a bug of ours."""
    import gymnasium

    from tf_reinforce.collect import results

    wrong = (ValueError, OSError, ImportError, gymnasium.error.Error)
    failed = (results.EnvironmentFault, FloatingPointError)
    return 1 if isinstance(error, failed) else 2 if isinstance(error, wrong) else None


def train(options):
    from tf_reinforce import agent as agents
    from tf_reinforce import presets
    from tf_reinforce.data import seeding
    from tf_reinforce.experiments import runs

    env, seed = options.env, seeding.check_seed(options.seed)
    if options.seeds is not None:
        _give_programs_a_core_each()
    settings = _settings(
        options, presets.read(options.preset) if options.preset else None
    )
    twin = _twin(options, settings)
    threshold = runs.reward_threshold(env, settings["env_kwargs"])
    target = settings["evaluation"].get("target", threshold)
    if options.seeds is not None:
        return _train_seeds(options, settings, twin, seed, target)
    learner = agents.Reinforce.for_env(
        env, seed=seed, env_kwargs=settings["env_kwargs"], **settings["agent"]
    )
    directory = runs.new_directory(options.run_dir, env, seed)
    try:
        result = runs.train(
            learner,
            env,
            directory,
            settings,
            target=target,
            seed=seed,
            twin=twin,
        )
    except Exception:
        runs.remove_if_unstarted(directory)
        raise
    _summary(options, directory, target, result)
    _export(options, directory)
    if options.preset and not result["interrupted"]:
        chance = runs.random_return(env, settings, seed)
        print(_verdict(env, result["evaluation"], chance, target, threshold))
    return INTERRUPTED if result["interrupted"] else 0


def _give_programs_a_core_each():
    """One thread for an operation, before TensorFlow starts, unless somebody chose."""
    import tensorflow as tf

    threading = tf.config.threading
    chosen = threading.get_intra_op_parallelism_threads()
    if not chosen and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # it has started
            threading.set_intra_op_parallelism_threads(1)


def _train_seeds(options, settings, twin, first, target):
    from tf_reinforce import agent as agents
    from tf_reinforce import validation
    from tf_reinforce.experiments import runs

    count, fit = validation.positive_int("seeds", options.seeds), settings["fit"]
    if twin is None or fit.get("epochs") is None:
        raise ValueError(
            "Several seeds at once need an environment with a twin and a number of "
            f"updates. Expected: --epochs, and one of {list(_twins())}. Received: "
            f"{options.env}, epochs={fit.get('epochs')}, --engine {options.engine}"
        )

    def make(seed):
        return agents.Reinforce.for_env(twin, seed=seed, **settings["agent"])

    directory = runs.new_directory(options.run_dir, options.env, first)
    seeds = range(first, first + count)
    try:
        result = runs.train_seeds(make, options.env, directory, settings, twin, seeds)
    except Exception:
        runs.remove_if_unstarted(directory)
        raise
    returns = sorted(result["returns"].values())
    reached = "" if target is None else f", {_reached(returns, target)} at {target:g}"
    print(
        f"\n{options.env}: {count} seeds, {result['env_steps']:,} steps in "
        f"{result['seconds']:.1f} s\n"
        f"returns over fresh episodes: least {returns[0]:.1f}, median "
        f"{statistics.median(returns):.1f}, most {returns[-1]:.1f}{reached}\n"
        f"saved in {directory}"
    )
    _export(options, directory)
    return 0


def _export(options, directory):
    """Writes the policy of a run where that was asked for."""
    from tf_reinforce import agent as agents
    from tf_reinforce.experiments import runs

    if options.export is not None:
        folder = options.export or directory / "policy"
        agents.load(runs.agent_file(directory)).export(folder)
        print(f"exported to {folder}")


def _reached(returns, target):
    return f"{sum(x >= target for x in returns)} of {len(returns)}"


def _twins():
    from tf_reinforce import envs

    return envs.TWINS


def _twin(options, settings):
    """The tensor environment to train on, or `None` for the environment itself."""
    from tf_reinforce import envs

    fit = settings["fit"]
    several = options.seeds is None and fit.get("workers", 1) != 1
    if options.engine == "host" or (options.engine == "auto" and several):
        return None
    changed = settings["env_kwargs"] or fit.get("steps_per_epoch")
    twin = None if changed else envs.twin_of(options.env)
    if options.engine == "compiled":
        if changed:
            raise ValueError(
                "The compiled engine plays the environment as it is registered, a fixed "
                "number of episodes at once. Give `--episodes-per-epoch`, or `--engine "
                f"host`. Received: env_kwargs={settings['env_kwargs']}, "
                f"steps_per_epoch={fit.get('steps_per_epoch')}"
            )
        return twin or envs.make(options.env)
    if twin is not None:
        print(
            f"training on tf_reinforce.envs.{type(twin).__name__}, the compiled twin of "
            f"{options.env}, all episodes at once; evaluating on {options.env} itself "
            "(--engine host: both)"
        )
    return twin


def _settings(options, preset):
    """What to train: the defaults, over them the preset, over it the options given."""
    from tf_reinforce.training import loop

    if preset is not None and preset["env"] != options.env:
        raise ValueError(
            f"The preset {options.preset} is for another environment. "
            f"Expected: {preset['env']}. Received: {options.env}"
        )
    settings = preset or {"env_kwargs": {}, "agent": {}, "fit": {}, "evaluation": {}}
    agent, fit, evaluation = (
        _given(options, names) for names in (AGENT, FIT, EVALUATION)
    )
    return {
        "preset": options.preset,
        "env_kwargs": settings["env_kwargs"],
        "agent": {**DEFAULTS, **settings["agent"], **agent},
        "fit": {"num_envs": 8, **loop.merge_options(settings["fit"], fit)},
        "evaluation": {**settings["evaluation"], **evaluation},
    }


def _given(options, names):
    """Of the options, those given: by the names that the library has for them."""
    given = {ours: getattr(options, name) for name, ours in names.items()}
    return {name: value for name, value in given.items() if value is not None}


def _verdict(env, figures, chance, target, threshold):
    """One line: what was learned, what chance does, and what was asked for."""
    mean = figures["episode_return"]
    line = (
        f"{env}: mean return {mean:.4g} over {figures['episodes']:.0f} episodes, "
        f"of a random policy {chance:.4g}"
    )
    if target is None:
        return line
    kind = "threshold" if target == threshold else "target"
    return f"{line}, {kind} {target:g} {'reached' if mean >= target else 'missed'}"


def _summary(options, directory, target, result):
    figures = result["evaluation"]
    if figures is None:
        print(f"interrupted after {result['updates']} updates; saved in {directory}")
        return
    mean, deviation = figures["episode_return"], figures["episode_return_std"]
    verdict = ""
    if target is not None:
        verdict = f", target {target:g} {'reached' if mean >= target else 'missed'}"
    # An environment from a module is never taken from a file.
    named = f" --env {options.env}" if ":" in options.env else ""
    print(
        f"\n{options.env}: return {mean:.1f} ± {deviation:.1f} over "
        f"{figures['episodes']:.0f} fresh episodes{verdict}\n"
        f"trained {result['updates']} updates, {result['env_steps']:,} steps, "
        f"{result['seconds']:.1f} s with {result['evaluations']} evaluations\n"
        f"saved in {directory}\n\nnext:\n"
        f"  tf-reinforce evaluate {directory}{named} --episodes 1000\n"
        f"  tf-reinforce export {directory} --out {directory}/policy"
    )


def evaluate(options):
    from tf_reinforce import agent as agents
    from tf_reinforce.experiments import runs

    agent = agents.load(runs.agent_file(options.run))
    env, where = runs.environment_of(options.run)
    env = options.env or env
    if env is None:
        raise ValueError(
            f"{options.run} does not say which environment to evaluate on, or names "
            "a module, which is never imported on the word of a file. Give --env."
        )
    figures = agent.evaluate(
        env,
        options.episodes,
        deterministic=not options.stochastic,
        seed=options.seed,
        num_envs=options.num_envs,
        workers=options.workers,
        env_kwargs=where["env_kwargs"],
        max_episode_steps=options.max_episode_steps or where["max_episode_steps"],
    )
    print(json.dumps(figures, indent=2))
    return 0


def export(options):
    from tf_reinforce import agent as agents
    from tf_reinforce.experiments import runs

    agents.load(runs.agent_file(options.run)).export(options.out)
    print(f"exported to {options.out}: act, sample, distribution, log_prob")
    return 0


def explain(options):
    from tf_reinforce.functional import explanation

    chosen = {
        name: getattr(options, name)
        for name in ("probs", "logits", "action", "counts", "mean", "std", "sample")
        if getattr(options, name) is not None
    }
    print(explanation.text(**chosen))
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="tf-reinforce", description="REINFORCE for people who think in Keras."
    )
    parser.add_argument("--version", action="version", version=version.VERSION)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _train_parser(verbs)

    verb = verbs.add_parser("evaluate", help="play episodes with a trained agent")
    verb.set_defaults(verb=evaluate)
    verb.add_argument("run", metavar="RUN", help="run directory or agent file")
    verb.add_argument("--episodes", type=int, default=100)
    verb.add_argument("--env", help="environment id; a run directory names its own")
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--num-envs", type=int, default=8)
    verb.add_argument("--workers", type=int, default=1, help="processes that play them")
    verb.add_argument("--max-episode-steps", type=int, help="the run's own if left out")
    verb.add_argument(
        "--stochastic", action="store_true", help="sample actions instead of the mode"
    )

    verb = verbs.add_parser("export", help="write a SavedModel of the policy")
    verb.set_defaults(verb=export)
    verb.add_argument("run", metavar="RUN", help="run directory or agent file")
    verb.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    _explain_parser(verbs)
    return parser


def _explain_parser(verbs):
    verb = verbs.add_parser(
        "explain",
        help="what one sampled action sends back into the network",
        description="Prints the characteristic eligibility, d log-probability / d "
        "parameter, in closed form beside automatic differentiation. Give --probs or "
        "--logits with --action or --counts, or --mean, --std and --sample. --counts "
        "alone means even probabilities.",
    )
    verb.set_defaults(verb=explain)
    add = verb.add_argument
    add("--probs", type=float, nargs="+", metavar="P", help="relative probabilities")
    add("--logits", type=float, nargs="+", metavar="Z")
    add("--action", type=float, metavar="A", help="the category sampled, from 0")
    add("--counts", type=float, nargs="+", metavar="N", help="how often each came")
    add("--mean", type=float, nargs="+", metavar="M", help="of a diagonal Gaussian")
    add("--std", type=float, nargs="+", metavar="S")
    add("--sample", type=float, nargs="+", metavar="Y")


def _train_parser(verbs):
    verb = verbs.add_parser(
        "train",
        help="train an agent on an environment",
        description="Without a budget (--epochs, --steps, or that of a preset) training "
        "ends when an evaluation over 100 episodes reaches the target return, or after "
        "300 updates. With one, the target is only reported.",
    )
    verb.set_defaults(verb=train)
    add = verb.add_argument
    add("env", metavar="ENV", help="environment id, also module:Id-v0")
    add("--preset", metavar="NAME", help="settings of docs/presets.md; or FILE.toml")
    add("--epochs", type=int, help="updates to make")
    add("--steps", type=int, help="environment steps to learn from, instead")
    add("--episodes-per-epoch", type=int, help="episodes per update (16)")
    add("--steps-per-epoch", type=int, help="steps per update, instead")
    add("--num-envs", type=int, help="environments side by side (8); host only")
    add("--workers", type=int, help="processes that play them (1); host only")
    add(
        "--engine",
        choices=("auto", "host", "compiled"),
        default="auto",
        help="compiled: all episodes in one XLA program, where there is a twin in "
        "TensorFlow; host: Gymnasium's own; auto: compiled where the twin is the same",
    )
    add("--seed", type=int, default=0)
    add("--seeds", type=int, metavar="K", help="train K seeds at once, from --seed on")
    add("--learning-rate", type=float, help="of Adam (0.01)")
    add("--gamma", type=float, help="the discount (0.99)")
    add("--hidden", type=int, nargs="*", help="hidden layer sizes (64 64)")
    add("--head", metavar="NAME", help="for a Box: Gaussian, ClippedGaussian, …")
    add("--baseline", choices=BASELINES, help="(leave_one_out)")
    add("--entropy-coef", type=float, help="share of the entropy bonus (0)")
    add("--normalize-observations", action=argparse.BooleanOptionalAction)
    add("--max-episode-steps", type=int, help="a time limit of your own")
    add("--target-return", type=float, help="the environment's own threshold if left out")
    add("--run-dir", metavar="DIR", help="folder of this run (runs/ENV/DATE_seedN)")
    add(
        "--export",
        metavar="DIR",
        nargs="?",
        const="",
        help="also write the best policy as a SavedModel (RUN/policy)",
    )
