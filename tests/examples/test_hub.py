"""Tests the folder and the model card for the Hugging Face Hub, without a network."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """Returns the agent, the uploaded folder, and the calls that need a network."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    hub, calls, patch = toys.example("hub"), [], pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("hub"))
    patch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("create_repo", "upload_folder"):
        patch.setattr(
            huggingface_hub.HfApi,
            name,
            lambda self, *args, call=name, **kwargs: calls.append((call, args, kwargs)),
        )
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,))
    agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, verbose=0)
    hub.push(agent, "CartPole-v1", "somebody/cartpole")
    yield agent, pathlib.Path("hub").resolve(), calls
    patch.undo()


def test_folder_is_uploaded_to_a_repository_that_is_created_before(pushed):
    _, _, calls = pushed
    assert [name for name, *_ in calls] == ["create_repo", "upload_folder"]
    assert calls[0][1:] == (("somebody/cartpole",), {"exist_ok": True})
    assert calls[1][2] == {"repo_id": "somebody/cartpole", "folder_path": "hub"}


def test_agent_and_policy_of_the_folder_load_and_act_alike(pushed):
    agent, folder, _ = pushed
    observations = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
    expected = agent.act(observations, deterministic=True)
    loaded = tfr.load(folder / "agent.keras")
    np.testing.assert_array_equal(loaded.act(observations, deterministic=True), expected)
    act = tf.saved_model.load(folder / "policy").signatures["act"]
    exported = act(observation=tf.constant(observations))["action"]
    np.testing.assert_array_equal(exported, expected)


def test_model_card_has_valid_metadata_results_and_versions(pushed):
    from huggingface_hub import ModelCard

    agent, folder, _ = pushed
    card = ModelCard.load(folder / "README.md")
    (result,) = card.data.eval_results
    evaluated = agent.evaluate("CartPole-v1")
    mean, deviation = evaluated["episode_return"], evaluated["episode_return_std"]
    assert result.metric_value == f"{mean:.2f} ± {deviation:.2f}"
    assert (result.task_type, result.dataset_name) == (
        "reinforcement-learning",
        "CartPole-v1",
    )
    assert {"reinforcement-learning", "CartPole-v1"} <= set(card.data.tags)
    text = card.content
    for part in (
        f"tf_reinforce {tfr.__version__}",
        "Discrete(2)",
        "1 updates",
        "Categorical",
    ):
        assert part in text
    assert 'hf_hub_download("somebody/cartpole", "agent.keras")' in text
