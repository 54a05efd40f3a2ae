"""Memory: what a recurrent policy carries while it acts is what the update reads."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import recurrence


def policy(layer=keras.layers.GRU, inputs=2, outputs=3, dtype="float32", **kwargs):
    return keras.Sequential(
        [
            keras.Input((None, inputs), dtype=dtype),
            layer(5, return_sequences=True, dtype=dtype, **kwargs),
            keras.layers.Dense(outputs, dtype=dtype),
        ]
    )


def learner(model=None, **settings):
    keras.utils.set_random_seed(0)
    agent = tfr.Reinforce(model or policy(), **settings)
    agent.compile(keras.optimizers.Adam(0.01))
    return agent


def ready(model=None, env=toys.Lengths, **settings):
    """The same, built, with weights by which what is remembered decides."""
    agent = learner(model, **settings)
    agent._meet(env().observation_space, env.action_space)
    for weight in agent.policy.trainable_variables:
        weight.assign(2.0 * weight)
    return agent


def same(one, other):
    for a, b in zip(tuple(one)[:5], tuple(other)[:5], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layer", [keras.layers.LSTM, keras.layers.GRU])
def test_acting_step_by_step_is_the_whole_column(layer):
    """Every greedy action is the arg max of the policy run over its whole episode."""
    agent = ready(policy(layer), normalize_observations=True)
    agent.normalizer.update(np.random.default_rng(0).uniform(0, 12, (50, 2)))
    with tfr.collect.open_fleet(toys.Lengths, 3) as fleet:
        address = "evaluation", 0, 0
        played = agent._player.collect(
            fleet, *address, episodes=30, steps=None, greedy=True
        )
    assert agent._player.programs[True].engine == "litert"
    episodes = played.episodes
    likely = np.argmax(agent(episodes.observations.swapaxes(0, 1)), -1)
    for b, length in enumerate(episodes.lengths):
        np.testing.assert_array_equal(episodes.actions[:length, b], likely[b, :length])
    assert len(set(episodes.lengths)) > 5


def test_the_number_of_environments_does_not_change_one_number():
    """Each slot carries its own state, and forgets it when an episode begins."""
    agent = ready()
    one = agent.collect(toys.Lengths, 30, num_envs=1)
    for num_envs in (2, 7, 40):
        same(one, agent.collect(toys.Lengths, 30, num_envs=num_envs))


def test_a_vector_env_forgets_too():
    """Nothing is random in a `Clock`: what is drawn follows from what is remembered."""
    agent = ready(policy(inputs=1, outputs=2), toys.Clock)
    one = agent.collect(toys.Clock, 60, num_envs=1)
    for mode in gym.vector.AutoresetMode:
        env = gym.vector.SyncVectorEnv([toys.Clock] * 3, autoreset_mode=mode)
        same(one, agent.collect(env, 60))


@pytest.mark.parametrize("normalize", [False, True])
def test_the_gradient_is_its_definition(normalize):
    """Through time, one step after the other, from each episode's own first state."""
    agent = learner(
        policy(keras.layers.LSTM, dtype="float64"),
        baseline=None,
        gamma=0.9,
        normalize_observations=normalize,
    )
    episodes = agent.collect(toys.Lengths, 3)
    if normalize:
        agent.normalizer.update(np.random.default_rng(0).uniform(0, 12, (50, 2)))
    memory = recurrence.Recurrence(agent.policy, tf.TensorSpec((2,), "float64"))
    with tf.GradientTape() as tape:
        loss = 0.0
        for b, length in enumerate(episodes.lengths):
            states = memory.initial(1)
            for t in range(length):
                seen = tf.constant(episodes.observations[None, t, b])
                if normalize:
                    seen = agent.normalizer(seen)
                outputs, states = memory.step(seen, states)
                earned = sum(
                    0.9 ** (k - t) * episodes.rewards[k, b] for k in range(t, length)
                )
                log_probs = tf.nn.log_softmax(outputs[0])
                loss -= log_probs[episodes.actions[t, b]] * earned / 3
    expected = tape.gradient(loss, agent.policy.trainable_variables)
    gradients, _, logs = agent.gradients(episodes)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(logs["loss"], loss, rtol=1e-12)


def test_padding_is_never_read():
    agent = learner(policy(dtype="float64"))
    episodes = agent.collect(toys.Lengths, 6)
    expected = agent.gradients(episodes)[0]
    rows = len(episodes.rewards)
    dirty = episodes.observations.copy()
    for b, length in enumerate(episodes.lengths):
        dirty[length + 1 :, b] = np.nan
    longer = episodes._replace(
        observations=np.concatenate([dirty, np.full((9, 6, 2), np.nan)]),
        actions=np.concatenate([episodes.actions, np.zeros((9, 6), "int64")]),
        rewards=np.concatenate([episodes.rewards, np.full((9, 6), np.nan)]),
    )
    assert len(longer.rewards) == rows + 9
    for ours, theirs in zip(agent.gradients(longer)[0], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def shared():
    inputs = keras.Input((None, 2))
    trunk = keras.layers.GRU(5, return_sequences=True)(inputs)
    heads = {name: keras.layers.Dense(n) for name, n in (("outputs", 3), ("values", 1))}
    return keras.Model(inputs, {name: head(trunk) for name, head in heads.items()})


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_a_value_baseline_goes_with_memory(kind):
    critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    baseline = tfr.baselines.Value(None if kind == "shared" else critic)
    agent = learner(shared() if kind == "shared" else policy(), baseline=baseline)
    logs = agent.fit(toys.Lengths, epochs=3, verbose=0).history
    assert np.isfinite(logs["value_loss"]).all()


def test_a_policy_of_sequences_is_a_keras_model_of_sequences():
    agent = ready()
    sequences = np.ones((4, 7, 2), "float32")
    assert agent(sequences).shape == (4, 7, 3)
    np.testing.assert_allclose(agent.predict(sequences, verbose=0), agent(sequences))
    given = tfr.Reinforce(policy(), tfr.heads.Categorical(3))
    given(sequences)  # built without a space, by the shape of a sequence
    given.compile()
    given.update(agent.collect(toys.Lengths, 3))


# Acting by hand, files and exports


def test_act_hands_the_state_on(tmp_path):
    agent = ready(policy(keras.layers.LSTM))
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    agent.export(tmp_path / "policy")
    exported = tf.saved_model.load(tmp_path / "policy")
    rng = np.random.default_rng(0)
    column = rng.normal(size=(9, 4, 2)).astype("float32")
    state, theirs = None, exported.initial_state(tf.constant(4))
    whole = np.argmax(agent(column.swapaxes(0, 1)), -1) + 5
    for t, row in enumerate(column):
        actions, state = loaded.act(row, deterministic=True, state=state)
        answer = exported.act(tf.constant(row), theirs)
        theirs = {name: answer[name] for name in theirs}
        np.testing.assert_array_equal(actions, whole[:, t])
        np.testing.assert_array_equal(answer["action"], whole[:, t])
    drawn, _ = agent.act(column[0], seed=4)
    signature = exported.signatures["sample"]
    begin = exported.initial_state(tf.constant(4))
    answer = signature(
        observation=tf.constant(column[0]), seed=tf.constant(4, tf.int64), **begin
    )
    np.testing.assert_array_equal(drawn, answer["action"])
    assert set(answer) == {"action", "raw_action", "state_0", "state_1"}


def test_a_state_is_refused_where_there_is_none():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    agent = ready(model)
    with pytest.raises(ValueError, match="no recurrent layer, and takes no `state`"):
        agent.act(np.zeros((1, 2)), state={})


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path):
    through, half = learner(), keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
    through.fit(toys.Lengths, epochs=4, callbacks=[half], verbose=0)
    resumed = tfr.load(tmp_path / "2.keras")
    resumed.fit(toys.Lengths, epochs=2, verbose=0)
    for ours, theirs in zip(resumed.get_weights(), through.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_policy_that_mixes_steps_otherwise_is_refused():
    layers = [keras.layers.Conv1D(4, 3, padding="same"), keras.layers.Dense(3)]
    memory = keras.layers.GRU(4, return_sequences=True)
    model = keras.Sequential([keras.Input((None, 2)), memory, *layers])
    with pytest.raises(ValueError, match="mixes time steps"):
        learner(model).fit(toys.Lengths, epochs=1, verbose=0)
