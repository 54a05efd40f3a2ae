"""Compares updates and logs of `SequenceReinforce` with their definition in float64.

Every pair of values of two options is compared, among them the options that save memory
or time, which must not change the result. The reference differs from the model.
"""

import functools
import inspect
import warnings

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub", reason='needs pip install ".[text]"')
import language_models
import pairwise
import sequence_definition as definition

import tf_reinforce as tfr
from tf_reinforce.data import seeding

PROMPTS = ["3+4=", "1=", "10+2=", "0=", "7+="]
RATE = 0.25  # exact in float32, the type of a learning rate


@keras.saving.register_keras_serializable("test_sequence_options")
def sevens(completions):
    return [float(completion.count("7")) for completion in completions]


@keras.saving.register_keras_serializable("test_sequence_options")
def lengths(completion_ids):
    return [len(ids) ** 1.5 for ids in completion_ids]


# Options that save memory or time: the update is that of the other options alone.
SAVES = {
    "microbatch_size": [None, 4, 1],
    "run_eagerly": [True],
    "jit_compile": [False],
}
# Options that change what is optimized, which the definition contains.
CHANGES = {
    "group_size": [3, 2],
    "kl_coef": [0.3, 0.0],
    "temperature": [1.0, 0.7],
    "passes": [1, 2],
    "minibatch_size": [None, 4],
    "ratio_clip": [1.01, 2.0],
    "scale_advantages": [False, True],
    "length_normalization": [False, True],
    "reward_weights": [None, [0.5, -2.0]],
}
# The language model is whole, has adapters, or has them on quantized weights.
MODELS = ["plain", "lora", "int8"]
# Arguments that choose data, texts, or what is reported.
OTHERS = {
    *("causal_lm", "rewards", "max_completion_length", "stop_token_ids", "reply"),
    *("max_turns", "seed", "optimizer", "auto_scale_loss", "prompts", "batch_size"),
    *("epochs", "steps_per_epoch", "shuffle", "initial_epoch", "validation_data"),
    *("validation_freq", "callbacks", "verbose", "resume"),
}
TABLE = {**SAVES, **CHANGES, "model": MODELS}


def test_every_option_saves_memory_or_time_or_changes_the_objective():
    cls = tfr.sequences.SequenceReinforce
    methods = cls.__init__, cls.compile, cls.fit
    tables = [SAVES, CHANGES, OTHERS]
    pairwise.expect_listed([inspect.signature(x) for x in methods], tables)


@functools.cache
def causal_lms(kind):
    """Returns two equal models, and the weights of the first and of the reference."""
    models = []
    for _ in range(2):
        model = language_models.text_gpt2(dtype="float64")
        language_models.random_weights(model)
        if kind == "int8":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the input layers have no weights
                model.backbone.quantize("int8")
        if kind != "plain":
            model.backbone.enable_lora(2)
            for layer in model._flatten_layers():
                if getattr(layer, "lora_enabled", False):
                    layer.lora_alpha = 5
        models.append(model)
    weights = []
    for seed in range(2):
        language_models.random_weights(models[0], seed=seed + 5)
        weights.append([np.array(x) for x in models[0].trainable_variables])
    return models, *weights


def set_weights(model, weights):
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)


def make(case):
    """Returns a model whose reference differs from it, and a twin that is the reference.

    The reference is the language model at the construction.
    """
    options = dict(case)
    (causal_lm, twin), weights, reference = causal_lms(options.pop("model"))
    mode = {name: options.pop(name) for name in ("run_eagerly", "jit_compile")}
    for model in (causal_lm, twin):
        set_weights(model, reference)
    model = tfr.sequences.SequenceReinforce(
        causal_lm, [sevens, lengths], max_completion_length=4, seed=3, **options
    )
    set_weights(causal_lm, weights)
    model.compile(keras.optimizers.SGD(RATE), **mode)
    return model, twin, weights


def permutations(rows, passes, number):
    rng = seeding.generator(3, "training/minibatches", number)
    return [rng.permutation(rows) for _ in range(passes)]


def expected_update(case, model, twin, columns, weights, number):
    """Returns weights and logs of an update by definition; changes no weight.

    Args:
        twin: The language model of the reference.
        columns: Dict of lists, the prompts of the update.
        weights: List of arrays, the weights before the update.
    """
    sampled = model.sample(columns)
    parts = {f.__name__: np.array(f(sampled.columns[x])) for f, x in REWARDS}
    rewards = np.array(case["reward_weights"] or [1.0, 1.0]) @ [*parts.values()]
    orders = permutations(len(rewards), case["passes"], number)
    by_hand = model.causal_lm
    logs = definition.update(
        by_hand, twin, sampled.completions, rewards, orders, RATE, **case
    )
    after = [np.array(x) for x in by_hand.trainable_variables]
    set_weights(by_hand, weights)
    ids, groups = sampled.columns["completion_ids"], [case["group_size"], -1]
    ends = [row[-1] == language_models.END for row in ids]
    logs |= {
        "reward": rewards.mean(),
        **{f"reward_{name}": values.mean() for name, values in parts.items()},
        "completion_length": np.mean([len(row) for row in ids]),
        "truncated": 1 - np.mean(ends),
        "equal_reward_groups": np.mean(
            [len({*group}) == 1 for group in rewards.reshape(groups[::-1])]
        ),
    }
    return after, logs


REWARDS = [(sevens, "completions"), (lengths, "completion_ids")]


def tolerance(case):
    """KerasHub rounds masks to float32; quantized layers, inputs and outputs."""
    return 1e-5 if case["model"] == "int8" else 1e-7


def compare_update(case):
    model, twin, weights = make(case)
    columns = {"prompts": PROMPTS[:2]}
    after, expected = expected_update(case, model, twin, columns, weights, 0)
    logs = model.train_on_prompts(columns)
    assert set(logs) == set(expected)
    limit = tolerance(case)
    for name, value in expected.items():
        assert logs[name] == pytest.approx(value, rel=limit, abs=limit), name
    changed = False
    trained = model.causal_lm.trainable_variables
    for x, y, before in zip(trained, after, weights, strict=True):
        np.testing.assert_allclose(x, y, rtol=limit, atol=limit)
        changed |= np.abs(y - before).max() > 1e-3
    assert changed and (abs(expected["kl"]) > 0.1 or not case["kl_coef"])


CASES = pairwise.covering(TABLE)
ALL_AT_ONCE = {name: values[-1] for name, values in TABLE.items()}
ALL_AT_ONCE |= {"kl_coef": 0.3, "microbatch_size": 4, "model": "lora"}


def test_update_and_logs_with_all_options_equal_their_definition():
    compare_update(ALL_AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_update_and_logs_of_every_pair_of_options_equal_their_definition(case):
    compare_update(case)


@keras.saving.register_keras_serializable("test_sequence_options")
def continued(completions):
    return ["=" if completion.count("7") else None for completion in completions]


# Every argument, with a value that is not its default.
ARGUMENTS = {
    "rewards": [sevens, lengths],
    "reward_weights": [0.5, -2.0],
    "group_size": 3,
    "kl_coef": 0.3,
    "temperature": 0.7,
    "max_completion_length": 4,
    "stop_token_ids": [language_models.END, 3],
    "reply": continued,
    "max_turns": 2,
    "passes": 2,
    "minibatch_size": 4,
    "microbatch_size": 3,
    "ratio_clip": 1.1,
    "scale_advantages": True,
    "length_normalization": True,
    "seed": 11,
}


def test_file_keeps_every_argument_and_the_adapters(tmp_path):
    """Adapters with `lora_alpha`, a frozen layer, and a reference that differs."""
    cls = tfr.sequences.SequenceReinforce
    parameters = inspect.signature(cls.__init__).parameters
    names = set(parameters) - {"self", "causal_lm", "kwargs"}
    assert names == set(ARGUMENTS)
    for name, value in ARGUMENTS.items():
        assert value != parameters[name].default
    (causal_lm, _), weights, reference = causal_lms("lora")
    set_weights(causal_lm, reference)
    frozen = next(x for x in causal_lm._flatten_layers() if x.name == "query")
    frozen.bias.trainable = False
    kept = [v for v in causal_lm.trainable_variables]
    try:
        model = cls(causal_lm, **ARGUMENTS, name="other")
        set_weights(causal_lm, [x + 0.1 for x in map(np.array, kept)])
        model.compile(keras.optimizers.Adam(RATE, beta_1=0.8), run_eagerly=True)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert loaded.get_config() == model.get_config()
        assert loaded.get_compile_config() == model.get_compile_config()
        config = loaded.get_config()
        functions = {"rewards", "reply"}
        for name in ARGUMENTS.keys() - functions:
            assert config[name] == ARGUMENTS[name], name
        assert loaded.rewards.functions == ARGUMENTS["rewards"]
        assert loaded.reply is continued and loaded.name == "other"
        columns = {"prompts": PROMPTS[:2]}
        logs = [each.train_on_prompts(columns) for each in (model, loaded)]
        assert logs[0] == logs[1] and abs(logs[0]["kl"]) > 0.01
        owners = [(x.causal_lm, x.optimizer, x) for x in (model, loaded)]
        for one, other in zip(*owners, strict=True):
            for x, y in zip(one.variables, other.variables, strict=True):
                np.testing.assert_array_equal(np.array(x), np.array(y))
    finally:
        frozen.bias.trainable = True


@pytest.mark.slow
def test_logs_of_an_epoch_weight_batches_with_their_prompts():
    """Batches of two prompts and of one, also in the validation."""
    case = {"model": "plain", "run_eagerly": True, "jit_compile": False}
    case |= {
        "microbatch_size": 2,
        "group_size": 3,
        "kl_coef": 0.3,
        "reward_weights": [0.5, -2.0],
        "passes": 1,
    }
    model, twin, weights = make(case)
    expected = []

    class Expected(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            before = [np.array(x) for x in model.causal_lm.trainable_variables]
            columns = {"prompts": PROMPTS[:3][2 * batch : 2 * batch + 2]}
            expected.append(expected_update(case, model, twin, columns, before, batch))

    options = dict(batch_size=2, shuffle=False, callbacks=[Expected()], verbose=0)
    history = model.fit(PROMPTS[:3], validation_data=PROMPTS[1:4], **options).history
    (after, last) = expected[-1]
    parts = [logs for _, logs in expected]
    means = {k: np.average([x[k] for x in parts], weights=[2, 1]) for k in last}
    for x, y in zip(model.causal_lm.trainable_variables, after, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-7)
    columns = model._converse({"prompts": PROMPTS[1:4]}, 1, None).columns
    completions, ids = columns["completions"], columns["completion_ids"]
    assert completions == model.generate(PROMPTS[1:4])
    values = {"sevens": np.mean(sevens(completions)), "lengths": np.mean(lengths(ids))}
    means |= {f"val_reward_{name}": value for name, value in values.items()}
    means["val_reward"] = 0.5 * values["sevens"] - 2 * values["lengths"]
    means["val_completion_length"] = np.mean([len(row) for row in ids])
    ends = [row[-1] == language_models.END for row in ids]
    means["val_truncated"] = 1 - np.mean(ends)
    assert set(history) == set(means)
    for name, value in means.items():
        assert history[name] == [pytest.approx(value, rel=1e-6, abs=1e-7)], name
    evaluated = model.evaluate(PROMPTS[1:4], batch_size=2)
    assert set(evaluated) == {k[4:] for k in means if k.startswith("val_")}
    for name, value in evaluated.items():
        assert value == pytest.approx(means[f"val_{name}"], rel=1e-6), name
