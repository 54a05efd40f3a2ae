"""Tests `SequenceReinforce`: training, files, callbacks, and errors."""

import asyncio
import functools

import keras
import numpy as np
import pytest
import sweeps

pytest.importorskip("keras_hub", reason='needs pip install ".[text]"')
import keras_hub
import language_models
import tensorflow as tf

import tf_reinforce as tfr

PROMPTS = ["3+4=", "1+1=", "10+2=", "0="]


@keras.saving.register_keras_serializable("test_sequences")
def sevens(completions):
    """The number of sevens of each completion."""
    return [float(completion.count("7")) for completion in completions]


SHORT = {"max_completion_length": 1}  # where nothing depends on the completions
GRAPH = {"run_eagerly": False}  # as users train; tracing takes longer than a few steps


def make(causal_lm=None, rewards=sevens, optimizer=None, mode=None, **options):
    causal_lm = causal_lm or language_models.text_gpt2()
    defaults = dict(group_size=4, max_completion_length=4, seed=3)
    model = tfr.sequences.SequenceReinforce(causal_lm, rewards, **{**defaults, **options})
    mode = {"run_eagerly": True} if mode is None else mode
    model.compile(optimizer or keras.optimizers.Adam(0.01), **mode)
    return model


def weights_of(model):
    return [np.array(v) for v in model.causal_lm.variables]


def assert_equal(first, second):
    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, y)


def assert_differ(first, second):
    assert any(not np.array_equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.slow
def test_training_raises_the_reward():
    model = make(optimizer=keras.optimizers.Adam(0.03), group_size=8, mode=GRAPH)
    before = model.evaluate(PROMPTS)["reward"]
    history = model.fit(PROMPTS * 4, batch_size=16, epochs=40, verbose=0)
    assert model.evaluate(PROMPTS)["reward"] > before + 2
    assert history.history["reward"][-1] > 2.5
    assert int(model.updates.numpy()) == 40


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"jit_compile": True}])
def test_eager_and_xla_updates_agree_with_graphs(options):
    def train(mode):
        model = make(mode=mode)
        sampled = model.sample(PROMPTS).columns
        model.train_on_prompts({"prompts": PROMPTS})
        return sampled, weights_of(model)

    (columns, weights), (others, other_weights) = train(GRAPH), train(options)
    assert columns == others
    for x, y in zip(weights, other_weights, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-4)


@pytest.mark.parametrize("size", [3, sweeps.rare(4)])
@pytest.mark.parametrize("scale", [sweeps.rare(False), True])
def test_equal_rewards_have_no_effect(scale, size):
    """Also with a reward whose mean is rounded; Adam would enlarge any difference."""
    model = make(
        rewards=lambda prompts: [12345.678] * len(prompts),
        kl_coef=0.0,
        group_size=size,
        scale_advantages=scale,
        **SHORT,
    )
    before = weights_of(model)
    logs = model.train_on_prompts({"prompts": PROMPTS})
    assert logs["gradient_norm"] == 0.0
    assert_equal(before, weights_of(model))


def test_large_rewards_lose_no_digits():
    model = make(kl_coef=0.0, **SHORT)
    completions = model.sample(PROMPTS).completions
    rewards = np.arange(16.0)
    expected, _ = model.gradients(completions, rewards)
    actual, _ = model.gradients(completions, rewards + 1e9)
    assert_equal(*([np.array(x) for x in each] for each in (expected, actual)))


def test_generate_selects_the_most_likely_tokens():
    model = make()
    tokenizer = model.causal_lm.preprocessor.tokenizer
    ids = [tokenizer.start_token_id, *np.array(tokenizer(["1+1="])[0])]
    for _ in range(4):
        inputs = {"token_ids": np.array([ids]), "padding_mask": np.ones([1, len(ids)])}
        ids.append(int(np.argmax(model.causal_lm(inputs)[0, -1])))
        if ids[-1] == language_models.END:
            break
    new = [x for x in ids[5:] if x not in (0, language_models.END)]
    expected = str(tokenizer.detokenize([new])[0]) if new else ""
    assert model.generate(["1+1="]) == [expected]


def test_evaluation_rewards_the_completions_of_generate():
    """In batches of three prompts and of one."""

    def sizes(prompts, completions):
        pairs = zip(prompts, completions, strict=True)
        return [len(prompt) + sum(map(ord, text)) for prompt, text in pairs]

    model = make(rewards=[sevens, sizes], reward_weights=[0.5, -2.0])
    logs = model.evaluate(PROMPTS, batch_size=3)
    texts = model.generate(PROMPTS)
    means = np.mean(sevens(texts)), np.mean(sizes(PROMPTS, texts))
    assert (logs["reward_sevens"], logs["reward_sizes"]) == pytest.approx(means)
    assert logs["reward"] == pytest.approx(0.5 * means[0] - 2.0 * means[1])
    assert len(set(sizes(PROMPTS, texts))) > 1


# Data.


def test_columns_belong_to_the_tokens_of_the_same_row():
    columns = {"prompts": PROMPTS, "answer": [10, 11, 12, 13]}
    model = make(group_size=3)
    sampled = model.sample(columns)
    tokenizer = model.causal_lm.preprocessor.tokenizer
    token_ids = sampled.completions.token_ids.numpy().tolist()
    assert sampled.columns["answer"] == np.repeat(columns["answer"], 3).tolist()
    for row, (prompt, answer) in enumerate(
        zip(sampled.columns["prompts"], sampled.columns["answer"], strict=True)
    ):
        expected = np.array(tokenizer([prompt])[0]).tolist()
        assert token_ids[row][1 : len(expected) + 1] == expected
        assert PROMPTS[answer - 10] == prompt


def test_coroutines_run_side_by_side():
    """Each waits for the other one, and would wait for ever if they ran in turn."""
    events = []

    async def first(prompts):
        events.append(asyncio.Event())
        while len(events) < 2:
            await asyncio.sleep(0)
        return [1.0] * len(prompts)

    async def second(prompts):
        events.append(asyncio.Event())
        return [2.0] * len(prompts)

    rewards = dict(rewards=[first, second, sevens], reward_weights=[1.0, 0.5, 0.0])
    model = make(**rewards, **SHORT)
    logs = model.train_on_prompts({"prompts": PROMPTS})
    assert logs["reward"] == 2.0
    assert (logs["reward_first"], logs["reward_second"]) == (1.0, 2.0)


def test_functions_may_change_their_arguments():
    def changes(prompts, completions, completion_ids, tests):
        rewards = sevens(completions)
        completions.sort()
        for ids, test in zip(completion_ids, tests, strict=True):
            ids.clear()
            test.append(rewards)
        return rewards

    seen = []

    def notes(completions, tests):
        seen.extend(tests)
        return sevens(completions)

    columns = {"prompts": PROMPTS, "tests": [["a"]] * 4}
    logs = make(rewards=[changes, notes]).train_on_prompts(columns)
    assert logs["reward_changes"] == logs["reward_notes"]
    assert logs["completion_length"] > 0
    assert seen == [["a"]] * 16 and columns["tests"] == [["a"]] * 4


def test_none_ends_a_completion_in_all_later_turns():
    """A completion without a reply, or that is truncated, is not asked again."""
    asked = []

    def reply(completions, truncated):
        asked.append(list(completions))
        assert not any(truncated)
        if len(asked) == 1:
            return ["=" if is_even(x) else None for x in completions]
        return ["1"] * len(completions)

    def is_even(completion):
        return len(completion) % 2 == 0

    model = make(reply=reply, max_turns=3, max_completion_length=12, group_size=64)
    columns = model.sample(["0="]).columns
    ended = [x for x in asked[0] if not is_even(x)]
    assert len(asked) == 2 and ended and asked[1]
    assert all("=" in x for x in asked[1])
    for completion in ended:
        assert completion in columns["completions"]


def test_replies_continue_completions():
    """The reply `==7` follows completions without a seven, once; it has two tokens."""

    def reply(completions):
        return [None if "7" in x else "==7" for x in completions]

    model = make(reply=reply, max_turns=3, max_completion_length=8)
    sampled = model.sample(PROMPTS)
    columns, record = sampled.columns, sampled.completions
    replied = [i for i, x in enumerate(columns["completions"]) if "==7" in x]
    assert replied
    sampled_counts = record.sampled.numpy().sum(axis=1)
    for row, ids in enumerate(columns["completion_ids"]):
        assert len(ids) <= 8
        assert sampled_counts[row] == len(ids) - 2 * (row in replied)
    logs = model.apply_rewards(record, sevens(columns["completions"]))
    assert np.isfinite([*logs.values()]).all()


def test_completion_without_space_for_its_reply_is_truncated():
    """After the first token there is no space for nine more."""
    asked = []

    def reply(completions):
        asked.append(completions)
        return ["1" * 9] * len(completions)

    options = dict(stop_token_ids=[*range(1, 15)], max_completion_length=9)
    columns = make(reply=reply, max_turns=3, **options).sample(PROMPTS).columns
    assert len(asked) == 1 and all(columns["truncated"])
    assert (
        columns["completions"] == make(**options).sample(PROMPTS).columns["completions"]
    )


# Files and callbacks.


def architecture(name):
    """A tiny model without preprocessor."""
    keras.utils.set_random_seed(0)
    arguments = dict(vocabulary_size=15, num_layers=1, hidden_dim=8)
    arguments |= dict(intermediate_dim=16, num_query_heads=2, num_key_value_heads=1)
    if name != "Llama":
        arguments["head_dim"] = 4
    backbone = getattr(keras_hub.models, f"{name}Backbone")(**arguments)
    return getattr(keras_hub.models, f"{name}CausalLM")(backbone, preprocessor=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen3", "Llama", "Gemma"])
def test_saved_model_continues_to_the_same_weights(name, tmp_path):
    prompts = {"prompts": [[5, 6, 7], [3]]}
    model = make(architecture(name), stop_token_ids=[1], rewards=ids_reward)
    before = weights_of(model)
    model.train_on_prompts(prompts)
    assert_differ(before, weights_of(model))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal(weights_of(model), weights_of(loaded))
    for each in (model, loaded):
        each.train_on_prompts(prompts)
    assert_equal(weights_of(model), weights_of(loaded))
    model.causal_lm.save_to_preset(tmp_path / "preset")
    alone = keras_hub.models.CausalLM.from_preset(str(tmp_path / "preset"))
    assert_equal(weights_of(model), [np.array(v) for v in alone.variables])


@keras.saving.register_keras_serializable("test_sequences")
def ids_reward(completions):
    return [float(completion.count(8)) for completion in completions]


@pytest.mark.parametrize("dtype", ["mixed_float16", sweeps.rare("mixed_bfloat16")])
def test_optimizer_scales_the_loss_of_a_policy_in_float16(dtype):
    model = make(language_models.text_gpt2(dtype=dtype))
    scales_loss = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scales_loss == (dtype == "mixed_float16")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_half_precision_trains(dtype):
    adam = keras.optimizers.Adam(0.01, beta_2=0.9)  # 0.999 is 1 in bfloat16
    options = dict(kl_coef=0.1, max_completion_length=2)
    model = make(language_models.text_gpt2(dtype=dtype), optimizer=adam, **options)
    before = weights_of(model)
    logs = model.fit(PROMPTS, epochs=2, verbose=0).history
    assert np.isfinite(logs["reward"]).all()
    assert max(logs["log_prob_difference"]) < 0.1
    assert 0 < max(logs["gradient_norm"]) < 10  # without the loss scale
    assert_differ(before, weights_of(model))


# Errors change nothing.


class Interrupting(keras.optimizers.SGD):
    """Is interrupted in its second step, after it has changed the weights."""

    def apply(self, gradients, variables):
        super().apply(gradients, variables)
        if int(self.iterations) == 2:
            raise KeyboardInterrupt


class OtherDistribution(keras_hub.models.GPT2CausalLM):
    """Samples from other logits than those that it returns when it is called."""

    def call_with_cache(self, token_ids, cache, cache_update_index):
        logits, *others = super().call_with_cache(token_ids, cache, cache_update_index)
        return logits * 1.5, *others


def returns(value):
    def bad(prompts):
        return value(len(prompts))

    return {"rewards": [sevens, bad]}


def raises(prompts):
    raise KeyError("no answer")


HUGE = {"rewards": lambda prompts: [1e38, -1e38] + 14 * [0.0]}
PARTS = {"minibatch_size": 4}  # several gradient steps, of which some are valid
OTHER = "must follow the distribution that is scored"
# The options of a model, and the error of its update.
FAILURES = {
    "none": (returns(lambda n: [None] * n), ValueError, "'bad' must return one.*object"),
    "too few": (returns(lambda n: [1.0] * 3), ValueError, "each of 16 rows"),
    "nan": (
        returns(lambda n: [0.0] * 5 + [float("nan")] * 11),
        ValueError,
        r"nan for completion 5 \(from 0\), whose prompt is '1\+1='",
    ),
    "text": (returns(lambda n: ["1"] * n), ValueError, "must return one number"),
    "raises": ({"rewards": [sevens, raises]}, KeyError, "no answer"),
    "infinite gradient": (HUGE, FloatingPointError, "changed no weight"),
    "later steps": ({**HUGE, **PARTS, "passes": 2}, FloatingPointError, "no weight"),
    "infinite weights": ({"optimizer": 3e38}, FloatingPointError, "no weight"),
    "interrupted": ({"optimizer": Interrupting(0.1), **PARTS}, KeyboardInterrupt, None),
    "other distribution": ({"causal_lm": OtherDistribution}, ValueError, OTHER),
    "first step": ({"causal_lm": OtherDistribution, **PARTS}, ValueError, OTHER),
}


OFTEN = ["later steps", "interrupted", "first step"]


@pytest.mark.parametrize("name", sweeps.some(FAILURES, always=OFTEN))
def test_failed_update_changes_no_weight(name):
    options, error, message = FAILURES[name]
    options = dict(options)
    if isinstance(options.get("optimizer"), float):
        options["optimizer"] = keras.optimizers.SGD(options["optimizer"])
    length = 1 if "rewards" in options else 4
    options["causal_lm"] = with_class(options.get("causal_lm"))
    model = make(max_completion_length=length, **options)
    variables = [*model.variables, *model.optimizer.variables]
    before = [np.array(v) for v in variables]
    with pytest.raises(error, match=message):
        model.fit(PROMPTS, shuffle=False, verbose=0)
    assert_equal(before, [np.array(v) for v in variables])


def test_fit_without_a_step_keeps_the_weights():
    """Keras' `fit` ends with the averages of weights, which start at zero."""
    model = make(optimizer=keras.optimizers.Adam(0.01, use_ema=True), **SHORT)
    before = weights_of(model)
    model.fit(PROMPTS, initial_epoch=1, epochs=1, verbose=0)
    assert_equal(before, weights_of(model))


def with_class(cls=None):
    model = language_models.text_gpt2()
    language_models.random_weights(model)
    return model if cls is None else cls(model.backbone, model.preprocessor)


def test_sampler_of_compile_is_kept_and_not_used():
    causal_lm = language_models.text_gpt2()
    causal_lm.compile(sampler="greedy")
    model = make(causal_lm)
    assert len(set(model.sample(["1+1="] * 4).columns["completions"])) > 4
    assert isinstance(causal_lm.sampler, keras_hub.samplers.GreedySampler)


def data():
    return tf.data.Dataset.from_tensor_slices(PROMPTS)


def unknown_argument(completions, solution):
    return [0.0] * len(completions)


LONG = "1234567890123"
REFUSED = {
    "too long": (lambda x: x.fit([*PROMPTS, LONG], batch_size=1), f"12 tokens.*{LONG}"),
    "number": (lambda x: x.fit([3]), "must be strings. Received: prompt=3"),
    "text": (lambda x: x.fit("1+1="), "list with an entry for each prompt"),
    "no prompts": (lambda x: x.fit({"prompt": PROMPTS}), "must contain `prompts`"),
    "lengths": (lambda x: x.fit({"prompts": PROMPTS, "answer": ["1"]}), "'answer': 1"),
    "reserved": (lambda x: x.fit({"prompts": PROMPTS, "truncated": PROMPTS}), "be named"),
    "empty": (lambda x: x.fit(data().take(0)), "at least one batch"),
    "infinite": (lambda x: x.fit(data().batch(2).repeat()), "`steps_per_epoch`"),
    "no data": (lambda x: x.fit(PROMPTS, validation_freq=2), "without `validation_data`"),
    "no batch": (lambda x: x.fit(data()), "must be a list with an entry"),
    "dataset": (lambda x: x.generate(data().batch(2)), "must be a list with an entry"),
    "rewards": (
        lambda x: x.apply_rewards(x.sample(PROMPTS[:1]).completions, [1.0]),
        r"must have the same shape .* \(1,\), \(4,\)",
    ),
}


@functools.cache
def refusing():
    """Returns one model for all calls that are refused, which must not change it."""
    return make()


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_calls_are_refused_and_change_no_weight(name):
    call, message = REFUSED[name]
    model = refusing()
    before = weights_of(model)
    with pytest.raises((TypeError, ValueError), match=message):
        call(model)
    assert_equal(before, weights_of(model))
    assert int(model.updates.numpy()) == 0


def frozen():
    causal_lm = language_models.text_gpt2()
    causal_lm.trainable = False
    return causal_lm


def no_language_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(2)(inputs))


MODELS = {
    "frozen": (frozen, {}, "needs trainable weights"),
    "long": (None, {"max_completion_length": 16}, "longest sequence of the model, 16"),
    "other": (no_language_model, {}, "causal language model of KerasHub.*Functional"),
    "half": (
        lambda: language_models.text_gpt2(dtype="float16"),
        {},
        "is in float16, in which the optimizer",
    ),
    "group_size": (None, {"group_size": 1}, "whole number of at least 2"),
    "turns": (None, {"max_turns": 2}, "both a function `reply`"),
    "reply": (
        None,
        {
            "reply": lambda prompts: [3] * 4,
            "max_turns": 2,
            "stop_token_ids": [*range(1, 15)],
        },
        "reply=3",
    ),
    "weights": (None, {"reward_weights": [1.0, 2.0]}, "must be 1 numbers"),
    "rewards": (None, {"rewards": "sevens"}, "`rewards` must be a function"),
    "argument": (None, {"rewards": unknown_argument}, "missing 1 required .*'solution'"),
    "stop": (None, {"stop_token_ids": [99]}, r"below 15.*stop_token_ids=\[99\]"),
    "padding": (None, {"stop_token_ids": [0]}, r"differs from the padding 0.*\[0\]"),
    "unknown": (None, {"nonsense": 1}, "nonsense"),
    "xla": (None, {"mode": {"jit_compile": True}, "passes": 2}, "XLA cannot compile"),
}


@pytest.mark.parametrize("name", MODELS)
def test_wrong_models_and_options_are_refused(name):
    make_causal_lm, options, message = MODELS[name]
    with pytest.raises((TypeError, ValueError), match=message):
        make(make_causal_lm and make_causal_lm(), **options).fit(PROMPTS[:1], verbose=0)


def test_training_before_compile_and_adapters_after_construction_are_refused():
    causal_lm = language_models.text_gpt2()
    model = tfr.sequences.SequenceReinforce(causal_lm, sevens, max_completion_length=4)
    with pytest.raises(ValueError, match="must call `compile"):
        model.fit(PROMPTS, verbose=0)
    model.compile("sgd")
    causal_lm.backbone.enable_lora(2)
    with pytest.raises(ValueError, match="must not change.*enable_lora"):
        model.fit(PROMPTS, verbose=0)


def test_columns_of_tables_and_datasets_reach_the_rewards_of_their_prompts():
    """Texts are strings, also in nested columns; bytes that are no texts stay bytes."""
    received = []

    def note(prompts, answers, picture):
        received.extend(zip(prompts, map(tuple, answers), picture))
        return [0.0] * len(prompts)

    answers = [[str(n), "2"] for n in range(4)]
    columns = {"prompts": [x.encode() for x in PROMPTS], "answers": answers}
    columns["picture"] = [b"\x89PNG\xff" + bytes([n]) for n in range(4)]
    expected = set(zip(PROMPTS, map(tuple, answers), columns["picture"]))
    model = make(rewards=note, **SHORT)
    slices = tf.data.Dataset.from_tensor_slices(columns)
    for prompts in (columns, slices.batch(4)):
        received.clear()
        model.evaluate(prompts)
        assert set(received) == expected and len(received) == 4
    received.clear()
    model.fit(columns, batch_size=2, verbose=0)
    assert set(received) == expected and len(received) == 4 * 4


@pytest.mark.slow
def test_file_of_unknown_reward_functions_generates_and_names_them(tmp_path):
    def unregistered(completions):
        return [0.0] * len(completions)

    causal_lm, rewards = language_models.text_gpt2(), [unregistered]
    rewards += [functools.partial(sevens)]
    model = tfr.sequences.SequenceReinforce(causal_lm, rewards, max_completion_length=4)
    model.save(tmp_path / "model.keras")  # not compiled
    with pytest.warns(UserWarning, match="'(unregistered|partial)' of the saved model"):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.generate(PROMPTS) == model.generate(PROMPTS)
    loaded.compile("sgd")
    with pytest.raises(ValueError, match="'unregistered' of the saved model"):
        loaded.evaluate(PROMPTS)


def test_second_end_token_of_instruction_tuned_models_ends_completions():
    tokenizer = language_models.tokenizer()
    tokenizer.token_to_id = {"<end_of_turn>": 5}.get
    tokenizer.get_vocabulary = lambda: ["0", "<end_of_turn>"]
    causal_lm = language_models.text_gpt2()
    causal_lm.preprocessor.tokenizer = tokenizer
    assert make(causal_lm).encoding.end_token_ids == [language_models.END, 5]


def byte_pair_model():
    """A GPT-2 with 9 ids behind its vocabulary, and one inside that has no token."""
    causal_lm = language_models.text_gpt2(vocabulary_size=language_models.END + 11)
    vocabulary = dict(language_models.tokenizer().vocabulary)
    vocabulary["=="] += 1  # its old id is a gap
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=["= ="])
    causal_lm.preprocessor.tokenizer = tokenizer
    return causal_lm


def test_ids_without_a_token_are_neither_sampled_nor_scored():
    """Scores are the softmax over the other ids. Their logits have no gradient."""
    causal_lm = byte_pair_model()
    tokenizer = causal_lm.preprocessor.tokenizer
    size = causal_lm.backbone.vocabulary_size
    texts, known = tokenizer.get_vocabulary(), np.zeros(size, bool)
    known[[tokenizer.token_to_id(x) for x in texts]] = True
    assert not known[-8:].any()
    model = make(causal_lm, lambda completions: [float(len(x)) for x in completions])
    record = model.sample(["3"] * 4).completions
    assert known[record.token_ids.numpy()].all()
    logits = np.array(causal_lm(record.inputs), "float64")
    scores = tf.nn.log_softmax(np.where(known, logits, -np.inf)).numpy()[:, :-1]
    ids = record.token_ids.numpy()[:, 1:, None]
    expected = np.take_along_axis(scores, ids, axis=2)[..., 0]
    expected = np.where(record.sampled[:, 1:], expected, 0)
    np.testing.assert_allclose(record.log_probs[:, 1:], expected, atol=1e-5)
    logs = model.train_on_prompts({"prompts": ["3"] * 4})
    assert logs["log_prob_difference"] < 1e-5
