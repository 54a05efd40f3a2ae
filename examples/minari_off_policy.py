"""Evaluates a policy on recorded episodes of another policy, with Minari.

    pip install "minari[hdf5]"
    python examples/minari_off_policy.py [epochs]

The behavior policy records a local dataset. The target policy is a later state of the
same agent. With the likelihood ratios ρ₀…ₜ = Πₖ π(aₖ|sₖ) / μ(aₖ|sₖ) of target π and
behavior μ, two estimates of the target's return need no new episodes:

    per decision:    1/n Σᵢ Σₜ ρᵢ,₀…ₜ rᵢ,ₜ
    weighted:        Σₜ ( Σᵢ ρᵢ,₀…ₜ rᵢ,ₜ / Σᵢ ρᵢ,₀…ₜ )

The per-decision estimate is unbiased. The weighted estimate has a bias, which vanishes
with the number n of episodes, and a smaller variance (Precup, Sutton & Singh, 2000).
"""

import os
import sys
import warnings

import minari
import numpy as np
from minari.data_collector.episode_buffer import EpisodeBuffer

import tf_reinforce as tfr

ENV, MAX_STEPS = "CartPole-v1", 50
os.environ.setdefault("MINARI_DATASETS_PATH", os.path.abspath("datasets"))


def record(agent, dataset_id, episodes=300):
    """Writes episodes of an agent that samples its actions to a local Minari dataset."""
    batch = agent.collect(ENV, episodes, max_episode_steps=MAX_STEPS)
    buffers = []
    for index, length in enumerate(batch.lengths):
        ends = np.arange(1, length + 1) == length
        terminated = bool(batch.terminated[index])
        buffers.append(
            EpisodeBuffer(
                id=index,
                observations=batch.observations[: length + 1, index],
                actions=batch.actions[:length, index],
                rewards=batch.rewards[:length, index],
                terminations=ends & terminated,
                truncations=ends & (not terminated),
            )
        )
    if dataset_id in minari.list_local_datasets():
        minari.delete_dataset(dataset_id)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")  # optional metadata is missing
        minari.create_dataset_from_buffers(dataset_id, buffers, env=ENV)
    return minari.load_dataset(dataset_id)


def to_episodes(dataset):
    """Returns a dataset as the time-major record of `tf_reinforce`, zero-padded."""
    recorded = list(dataset.iterate_episodes())
    lengths = np.array([len(x.rewards) for x in recorded])

    def stack(arrays, rows):
        padded = [
            np.pad(a, [(0, rows - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in arrays
        ]
        return np.stack(padded, axis=1)

    return tfr.Episodes(
        stack([x.observations for x in recorded], lengths.max() + 1),
        stack([x.actions for x in recorded], lengths.max()),
        stack([x.rewards for x in recorded], lengths.max()),
        lengths,
        np.array([bool(x.terminations[-1]) for x in recorded]),
    )


def log_probs(agent, episodes):
    """Returns `[T, B]` log π(aₜ|sₜ), zero in the padding."""
    result = np.zeros(episodes.rewards.shape)
    valid = np.arange(len(result))[:, None] < episodes.lengths
    result[valid] = agent.step_statistics(episodes).log_probs
    return result


def off_policy_returns(episodes, log_ratios):
    """Returns the per-decision and the weighted estimate of the return."""
    # After an episode, its ratio stays, and its rewards are zero.
    ratios = np.exp(np.cumsum(log_ratios, axis=0))
    weighted = ratios / ratios.sum(axis=1, keepdims=True)
    return (ratios * episodes.rewards).sum(0).mean(), (weighted * episodes.rewards).sum()


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    agent = tfr.Reinforce.for_env(ENV, learning_rate=3e-3)
    agent.fit(ENV, epochs=epochs, verbose=0)
    episodes = to_episodes(record(agent, "cartpole/behavior-v0"))
    behavior = log_probs(agent, episodes)
    agent.fit(ENV, epochs=epochs, verbose=0)
    estimates = off_policy_returns(episodes, log_probs(agent, episodes) - behavior)
    options = dict(deterministic=False, max_episode_steps=MAX_STEPS)
    on_policy = agent.evaluate(ENV, episodes=1000, **options)
    print(f"behavior policy: {episodes.rewards.sum(0).mean():.2f}")
    print("target policy, per decision: {:.2f}, weighted: {:.2f}".format(*estimates))
    print(f"target policy, new episodes: {on_policy['episode_return']:.2f}")
