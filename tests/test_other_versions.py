"""Tests files of earlier versions, which lack options, and of newer versions."""

import copy
import inspect
import json
import zipfile

import gymnasium as gym
import keras
import language_models
import numpy as np
import pytest
import sampling_models

import tf_reinforce as tfr

OWN = "tf_reinforce>"
# These parts are in the files of all versions.
PARTS = {"policy", "head", "baseline", "model", "loss", "optimizer", "name"}
PARTS |= {"stop_token_ids"}  # the default needs a tokenizer


def dense(size):
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(size)])


def agent():
    """An agent with no option at its default, except `returns`."""
    value = tfr.baselines.Value(dense(1), "sgd", passes=2, minibatch_size=3, scale=2.0)
    agent = tfr.Reinforce(
        dense(4),
        tfr.heads.Composite(
            {
                "arm": tfr.heads.Categorical(3),
                "leg": tfr.heads.Gaussian(1, initial_scale=0.3),
            }
        ),
        value,
        gamma=0.5,
        gae_lambda=0.5,
        discount_states=True,
        scale_advantages="running",
        scale_rewards=True,
        mean_over="steps",
        on_truncation="drop",
        minibatch_size=10**9,  # no array has this size
        passes=10**8,
        ratio_clip=(0.2, 0.3),
        max_kl=0.1,
        entropy_coef=0.1,
        normalize_observations=True,
        action_mask="info/action_mask",
    )
    agent.compile("sgd", steps_per_execution=20_000_000)
    leg = gym.spaces.Box(-np.inf, np.inf, (1,))
    agent.build_for_spaces(
        gym.spaces.Box(-1, 1, (2,)),
        gym.spaces.Dict(arm=gym.spaces.Discrete(3), leg=leg),
    )
    return agent


@keras.saving.register_keras_serializable("tests")
def threes(completions):
    return [completion.count(3) for completion in completions]


@keras.saving.register_keras_serializable("tests")
def no_reply(completions):
    return [None] * len(completions)


def score_function():
    model = sampling_models.policy(tfr.heads.Categorical(3, start=2))
    model = tfr.ScoreFunction(
        model, loss="mse", samples=3, baseline="mean", entropy_coef=0.1, dtype="float64"
    )
    model.compile("sgd")
    return model


def sequence_reinforce():
    chosen = dict(
        group_size=3,
        kl_coef=0.1,
        temperature=0.5,
        max_completion_length=4,
        max_turns=2,
        reply=no_reply,
        passes=3,
        minibatch_size=2,
        microbatch_size=1,
        ratio_clip=3.0,
        scale_advantages=True,
        length_normalization=True,
        reward_weights=[0.5],
        stop_token_ids=[1],
        seed=3,
    )
    causal_lm = language_models.gpt2(vocabulary_size=5, length=300)
    model = tfr.sequences.SequenceReinforce(causal_lm, threes, **chosen)
    model.compile("sgd")
    return model


MAKERS = {
    "Reinforce": agent,
    "ScoreFunction": score_function,
    "SequenceReinforce": sequence_reinforce,
}


@pytest.fixture(scope="module", params=MAKERS)
def saved(request, tmp_path_factory):
    """Returns a function that loads a file with an edited configuration."""
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    MAKERS[request.param]().save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])

    def load(edited):
        with zipfile.ZipFile(path, "w") as archive:
            members["config.json"] = json.dumps(edited).encode()
            for name, data in members.items():
                archive.writestr(name, data)
        is_agent = request.param == "Reinforce"
        return tfr.load(path) if is_agent else keras.saving.load_model(path)

    load.config, load.name = config, request.param
    return load


def own_objects(part):
    """Yields the class and the arguments of each object of the package in a config."""
    if isinstance(part, dict) and str(part.get("registered_name")).startswith(OWN):
        kind = keras.saving.get_registered_object(part["registered_name"])
        yield kind, part["config"]
    for value in part.values() if isinstance(part, dict) else part:
        if isinstance(value, (dict, list)):
            yield from own_objects(value)


def defaults(kind):
    """Returns the defaults of the options in the signature of a class."""
    parameters = inspect.signature(kind).parameters.values()
    with_default = {x.name: x.default for x in parameters if x.default is not x.empty}
    return {name: x for name, x in with_default.items() if name not in PARTS}


def test_missing_options_take_their_defaults(saved):
    """All options are missing, as in a file of a version that had none of them."""
    edited = copy.deepcopy(saved.config)
    for kind, arguments in own_objects(edited):
        for name in defaults(kind).keys() & arguments.keys():
            if arguments[name] is not None and (name, kind) != (
                "seed",
                tfr.layers.Sample,
            ):
                assert arguments[name] != defaults(kind)[name] or name in UNCHANGED, name
            del arguments[name]
    loaded = {"class": "", "registered_name": f"{OWN}{saved.name}"}
    loaded["config"] = saved(edited).get_config()
    for kind, arguments in own_objects(loaded):
        for name, default in defaults(kind).items():
            if name in arguments and name not in DERIVED:
                assert arguments[name] == default, (kind, name)


# Options that have their defaults in the saved files, and defaults that depend on others.
UNCHANGED = {"returns", "low", "high", "integer", "state_dependent_scale"}
UNCHANGED |= {"reward", "reply", "seed", "loss_weight", "start", "shape"}
DERIVED = {"shape", "reward_weights", "seed", "stop_token_ids", "low", "high"}


def test_newer_file_and_unknown_option_are_named(saved):
    newer = copy.deepcopy(saved.config)
    newer["config"].update(tf_reinforce="9.0rc1", brand_new=True)
    message = (
        f"The (agent|{saved.name}) was written by tf_reinforce 9.0rc1 .format 1., "
        f"this is {tfr.__version__} .format 1.. Install tf_reinforce 9.0rc1 or newer."
    )
    with pytest.raises(ValueError, match=message):
        saved(newer)
    newer["config"]["tf_reinforce"] = "0.0.9"
    with pytest.raises((ValueError, TypeError), match="brand_new"):
        saved(newer)
    for kind, _ in own_objects(saved.config):
        if kind is tfr.layers.Sample or issubclass(kind, tfr.heads.Categorical):
            edited = copy.deepcopy(saved.config)
            of_kind = [x for k, x in own_objects(edited) if k is kind]
            of_kind[0]["brand_new"] = True
            with pytest.raises((ValueError, TypeError), match="brand_new"):
                saved(edited)
