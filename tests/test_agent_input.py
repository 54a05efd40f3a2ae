"""Tests the errors of the agent, and that an error changes no variable."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import toys

import tf_reinforce as tfr
from tf_reinforce import heads

WAYS_OUT = r"(?s)head=tfr\.heads.*agent\.fit.*Reinforce\.for_env"


def policy(outputs=2, inputs=1):
    layers = keras.layers.Dense(3, "tanh"), keras.layers.Dense(outputs)
    return keras.Sequential([keras.Input((inputs,)), *layers])


def record(**fields):
    """Returns three episodes of at most five steps, with one number per observation."""
    rng = np.random.default_rng(0)
    given = tfr.Episodes(
        observations=rng.normal(size=(6, 3, 1)).astype("float32"),
        actions=rng.integers(2, size=(5, 3)).astype("int32"),
        rewards=rng.normal(size=(5, 3)),
        lengths=np.array([5, 2, 3], "int32"),
        terminated=np.array([True, False, True]),
    )
    return given._replace(**fields)


@pytest.fixture(scope="module")
def agent():
    """Returns an agent trained on a `Clock`; the tests must not change it."""
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=(3,))
    agent.fit(toys.Clock, epochs=1, episodes_per_epoch=2, verbose=0)
    return agent


# One refusal of each argument


def compiled(*args, **kwargs):
    agent = tfr.Reinforce(policy(*args), **kwargs)
    agent.compile(optimizer="sgd")
    return agent


VALUE, ROWS = tfr.baselines.Value, np.zeros([2, 1], "float32")
REFUSED = [
    (lambda _: tfr.Reinforce(policy(), gae_lambda=0.9), "below 1 needs a value"),
    (
        lambda _: tfr.Reinforce(
            policy(), None, VALUE(policy(1)), gae_lambda=0.9, returns="whole"
        ),
        "`gae_lambda` below 1 needs",
    ),
    (
        lambda _: tfr.Reinforce(policy(), heads.Categorical(2)).update(record()),
        "not compiled.*agent.compile",
    ),
    (
        lambda _: tfr.Reinforce(policy()).fit(toys.Clock, epochs=1),
        "not compiled.*agent.compile",
    ),
    (lambda _: compiled(3).fit(toys.Clock, epochs=1), r"returns 2 numbers.*\(2, 3\)"),
    (
        lambda _: compiled(2, 4).fit(toys.Clock, epochs=1),
        r"Expected: an input of shape \(None, 1\)",
    ),
    (lambda agent: agent(np.zeros([2, 3], "float32")), "shape"),
    (lambda agent: agent.act(ROWS[0]), r"shape \(None, 1\).*observation\[None\]"),
    (lambda agent: agent.act([[1.0], [1.0, 2.0]]), "inhomogeneous shape"),
    (lambda agent: agent.act(np.nan * ROWS), "policy are not finite"),
    (lambda agent: agent.fit(toys.Clock), "either `epochs` or `steps`"),
    (lambda agent: agent.fit(toys.Clock, epochs=1, steps=1), "either `epochs` or"),
    (
        lambda agent: agent.fit(
            toys.Clock, epochs=1, episodes_per_epoch=1, steps_per_epoch=1
        ),
        "either `episodes_per_epoch` or `steps_per",
    ),
]


@pytest.mark.parametrize("use, said", REFUSED, ids=lambda x: x if x is str else None)
def test_wrong_argument_is_refused(agent, use, said):
    with pytest.raises((TypeError, ValueError, FloatingPointError), match=said):
        use(agent)


# Construction and build


@pytest.mark.parametrize(
    "use",
    [
        lambda agent: agent(np.zeros([2, 1], "float32")),
        lambda agent: agent.build((None, 1)),
        lambda agent: agent.act(np.zeros([2, 1], "float32")),
        lambda agent: agent.save("never.keras"),
        lambda agent: agent.export("never"),
        lambda agent: agent.gradients(record()),
    ],
    ids=["call", "build", "act", "save", "export", "gradients"],
)
def test_error_without_head_and_spaces_names_three_remedies(use):
    with pytest.raises(ValueError, match=WAYS_OUT):
        use(tfr.Reinforce(policy()))


@pytest.mark.parametrize("ends", [{"outputs": 2, "values": 1}, None])
def test_build_raises_unless_policy_values_and_baseline_fit(ends):
    x = keras.Input((1,))
    y = {name: keras.layers.Dense(n)(x) for name, n in (ends or {}).items()}
    model = keras.Model(x, y or keras.layers.Dense(2)(x))
    baseline = "leave_one_out" if ends else tfr.baselines.Value()
    with pytest.raises(ValueError, match="(?s)belong together.*Received"):
        tfr.Reinforce(model, heads.Categorical(2), baseline).build((None, 1))


# Observations


@pytest.mark.parametrize(
    "wrong", [[1.7], [np.nan], [300], [-1], ["a"], np.array([1 + 2j])], ids=str
)
def test_act_raises_if_integer_observation_is_not_representable(wrong):
    """Conversion to an integer would result in another observation."""
    space = gym.spaces.Discrete(5, dtype=np.uint8)
    seeing = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=())
    assert seeing.act([3]).shape == seeing.act([3.0]).shape == (1,)
    with pytest.raises(ValueError, match="`observations` must be numbers of type uint8"):
        seeing.act(wrong)


SEEN = {"a": np.zeros((2, 1)), "b": (np.zeros((2, 3)),)}
WRONG_NESTS = {
    "missing": ({"a": SEEN["a"]}, r"nested like .*Received: \['a'\]"),
    "array": (SEEN["a"], "nested like .*Received: ndarray"),
    "array_inside": ({**SEEN, "b": SEEN["a"]}, "nested like .*Received: ndarray"),
    "rows": ({**SEEN, "a": np.zeros((3, 1))}, r"same number of rows. Received: .3, 2"),
    "none": ({**SEEN, "a": None}, r"shape \(None, 1\)"),
}


@pytest.fixture(scope="module")
def nested():
    box = gym.spaces.Box
    space = gym.spaces.Dict(a=box(-1, 1, (1,)), b=gym.spaces.Tuple([box(-1, 1, (3,))]))
    return tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=())


@pytest.mark.parametrize("name", WRONG_NESTS)
def test_act_raises_if_observations_have_another_nesting(nested, name):
    assert nested.act({"a": [[0], [1]], "b": [SEEN["b"][0]]}).shape == (2,)
    wrong, said = WRONG_NESTS[name]
    with pytest.raises(ValueError, match=said):
        nested.act(wrong)


def test_act_raises_if_state_has_another_structure_or_shape():
    layers = keras.layers.GRU(2, return_sequences=True), keras.layers.Dense(2)
    remembering = keras.Sequential([keras.Input((None, 1)), *layers])
    agent = tfr.Reinforce(remembering, heads.Categorical(2))
    agent.build((None, 1))
    rows = np.zeros((2, 1), "float32")
    actions, state = agent.act(rows)
    agent.act(rows, state=state)
    array = state["state_0"]
    wrongs = (actions, state), [array], {"x": array}, {"state_0": array[:1]}
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"`state` must.*'state_0': \(2, 2\)"):
            agent.act(rows, state=wrong)


# Records


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"actions": np.zeros((5, 3, 1), "int32")}, r"`actions`.*\(5, 3\)"),
        ({"actions": np.zeros((5, 3))}, "`actions` must be of type int64"),
        ({"actions": np.full((5, 3), 2)}, "(?s)raw actions.*2 at step 0 of episode 0"),
        ({"observations": np.zeros((5, 3, 1))}, r"`observations`.*\(6, 3, 1\)"),
        ({"rewards": np.zeros(5)}, r"`rewards` must be \[T, B\]"),
        ({"rewards": np.zeros((0, 3))}, "at least one step"),
        ({"lengths": np.array([5, 0, 3])}, "`lengths` must lie between 1 and 5"),
        ({"lengths": np.array([6, 1, 3])}, "`lengths` must lie between 1 and 5"),
        ({"terminated": np.zeros((3, 1), bool)}, r"`terminated`.*\(3,\)"),
    ],
)
def test_update_and_gradients_raise_if_a_field_has_wrong_shape_or_type(
    agent, fields, match
):
    for use in (agent.update, agent.gradients):
        with pytest.raises(ValueError, match=match):
            use(record(**fields))


def everything(agent):
    parts = [agent, agent.optimizer, agent.baseline.optimizer]
    return [np.array(v) for part in parts for v in part.variables]


@pytest.fixture(scope="module")
def complete():
    """Returns an agent with a normalizer, a critic and Adam, which an update changes."""
    agent = tfr.Reinforce(
        policy(),
        heads.Categorical(2),
        tfr.baselines.Value(policy(outputs=1)),
        normalize_observations=True,
    )
    agent.compile(optimizer=keras.optimizers.Adam(0.1))
    agent.update(record())
    return agent


def record_with(name, value, at=(2, 0)):
    """Returns the record with one element of one field replaced."""
    array = np.array(getattr(record(), name))
    array[at] = value
    return record(**{name: array})


@pytest.mark.parametrize(
    "episodes, where",
    [
        (record_with("rewards", np.nan), "episode 0, step 2, the reward is nan"),
        (record_with("rewards", 1e300 * 1e300), "episode 0, step 2, the reward is inf"),
        (record_with("rewards", 1e300), "episode 0, step"),
        (
            record_with("observations", np.nan, (1, 1)),
            "episode 1, step 1, the observation",
        ),
    ],
    ids=["nan", "inf", "large", "observation"],
)
def test_update_that_is_not_finite_raises_and_changes_nothing(complete, episodes, where):
    """Weights, optimizers, normalizer and counters keep every bit."""
    before = everything(complete)
    with pytest.raises(FloatingPointError, match="Update 1 would not be finite") as error:
        complete.update(episodes)
    assert where in str(error.value)
    np.testing.assert_array_equal(error.value.episodes.rewards, episodes.rewards)
    for old, new in zip(before, everything(complete), strict=True):
        np.testing.assert_array_equal(old, new)


def network_with_sqrt(outputs):
    """Returns a network with √x at x = 0, where the derivative is infinite."""
    layers = (
        keras.layers.Dense(1, kernel_initializer="zeros"),
        keras.layers.Activation(keras.ops.sqrt),
        keras.layers.Dense(outputs),
    )
    return keras.Sequential([keras.Input((1,)), *layers])


@pytest.mark.parametrize(
    "part, size",
    [sweeps.rare("policy", None), sweeps.rare("critic", None), ("critic", 1)],
)
def test_update_raises_if_gradients_are_not_finite_and_loss_is(part, size):
    agent = tfr.Reinforce(
        network_with_sqrt(2) if part == "policy" else policy(),
        heads.Categorical(2),
        tfr.baselines.Value(
            network_with_sqrt(1) if part == "critic" else policy(outputs=1),
            minibatch_size=size,
        ),
    )
    # A clipped infinite gradient would result in finite weights.
    agent.baseline.optimizer.clipvalue = 1.0
    agent.compile(optimizer=keras.optimizers.SGD(0.1, clipvalue=1.0))
    step = tfr.Episodes(
        observations=np.ones((2, 1, 1), "float32"),
        actions=np.zeros((1, 1), "int32"),
        rewards=np.ones((1, 1)),
        lengths=np.ones(1, "int32"),
        terminated=np.ones(1, bool),
    )
    gradients, baseline_gradients, logs = agent.gradients(step)
    assert np.isfinite([logs["loss"], logs["value_loss"]]).all()
    wrong = gradients if part == "policy" else baseline_gradients
    assert np.isinf(wrong[0]).all()
    before = [np.array(v) for v in agent.variables]
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(step)
    for old, new in zip(before, agent.variables, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("lost", ["weights", *map(sweeps.rare, ("slots", "critic"))])
def test_update_raises_if_weights_are_not_finite_and_gradients_are(lost):
    """A large learning rate or squares in Adam overflow, in the policy or the critic."""
    critic = policy(outputs=1)
    far = keras.optimizers.SGD(3e38)
    agent = tfr.Reinforce(
        policy(),
        heads.Categorical(2),
        tfr.baselines.Value(critic, optimizer=far if lost == "critic" else "adam"),
    )
    rates = {"weights": keras.optimizers.SGD(3e38), "slots": keras.optimizers.Adam()}
    agent.compile(optimizer=rates.get(lost) or keras.optimizers.SGD(0.1))
    size = {"weights": 1e3, "slots": 1e21, "critic": 1e3}[lost]
    batch = record(rewards=size * record().rewards)
    gradients, baseline_gradients, _ = agent.gradients(batch)
    assert all(np.isfinite(g).all() for g in [*gradients, *baseline_gradients])
    agent._build_optimizers()
    before = everything(agent)
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(batch)
    for old, new in zip(before, everything(agent), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    "head",
    [
        tfr.heads.Categorical(3),
        tfr.heads.Categorical(2, start=1),
        tfr.heads.Gaussian(2),
    ],
    ids=repr,
)
def test_build_raises_if_head_does_not_fit_the_action_space(head):
    agent = tfr.Reinforce(keras.Sequential([keras.layers.Dense(2)]), head)
    with pytest.raises(ValueError, match="does not sample actions of the space Discrete"):
        agent.build_for_spaces(toys.Clock.observation_space, toys.Clock.action_space)


@pytest.mark.parametrize(
    "env, other, message",
    [
        (toys.Clock, toys.Lengths, "[Ss]pace"),
        (toys.Bandit, tfr.envs.Bandit([0.0, 1.0]), "`reset_options`.* need Gymnasium"),
    ],
)
def test_wrong_validation_environment_raises_before_training(env, other, message):
    agent = tfr.Reinforce.for_env(env, hidden=())
    options = {"validation_env": other, "validation_freq": 3, "verbose": 0}
    with pytest.raises(ValueError, match=message):
        agent.fit(env, epochs=3, reset_options={"any": 1}, **options)
    assert agent.updates == 0


def test_validation_environment_has_the_env_kwargs_of_the_training():
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=())
    options = dict(epochs=1, episodes_per_epoch=1, validation_episodes=2, verbose=0)
    options |= dict(validation_env=toys.Clock, env_kwargs={"length": 2})
    logs = agent.fit(toys.Clock, **options).history
    assert logs["val_episode_length"] == logs["episode_length"] == [2.0]


def test_what_needs_a_validation_is_reported_without_one():
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=())
    options = dict(
        validation_freq=1, validation_episodes=3, validation_deterministic=False
    )
    for name, value in options.items():
        with pytest.raises(ValueError, match=f"does not validate.* {name}={value}$"):
            agent.fit(toys.Clock, epochs=1, verbose=0, **{name: value})
    stop = tfr.callbacks.StopAtReturn(1.0, monitor="val_episode_return")
    with pytest.raises(UserWarning, match="without 'val_episode_return' in the logs"):
        agent.fit(toys.Clock, epochs=1, callbacks=stop, verbose=0)


class Noisy(keras.layers.Layer):
    """A layer that adds random noise, also in inference mode."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)


def test_fit_raises_if_the_policy_is_random():
    model = keras.Sequential([keras.Input((1,)), Noisy(), keras.layers.Dense(2)])
    agent = tfr.Reinforce(model)
    agent.compile("adam")
    with pytest.raises(ValueError, match="same outputs for the same obs.* the head"):
        agent.fit(toys.Clock, epochs=1, verbose=0)
    assert agent.updates == 0
