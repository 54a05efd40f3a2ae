"""Compares policies that learn from logged decisions with those of Open Bandit Pipeline.

    .venv-obp/bin/python benchmarks/logged_bandit.py obp logs.npz
    .venv/bin/python benchmarks/logged_bandit.py ours logs.npz

The first command needs Open Bandit Pipeline 0.5.7 (PyTorch); with Python 3.11, pip needs
`--ignore-requires-python`. It makes a log of a synthetic bandit for each seed, with the
generator of Open Bandit Pipeline, trains its `NNPolicyLearner` by inverse propensity
scoring, and writes logs, policies and true mean rewards. The second command trains
`ScoreFunction.fit_logged` on the same logs, with the same network, first weights,
optimizer, batch size and number of epochs, but other batches. It prints the true value of
each policy for the same test contexts.
"""

import sys

import numpy as np

SEEDS, ROUNDS, ACTIONS, CONTEXT, EPOCHS = range(5), 10_000, 10, 5, 50
HIDDEN, RATE, BATCH = 100, 1e-3, 256
REPEATS = range(3)  # trainings for each log, with other first weights
NAMES = ("context", "action", "reward", "pscore", "test", "means", "logging")


def train_obp(path):
    """Writes the logs, the policies of Open Bandit Pipeline and the true mean rewards."""
    from obp import dataset as datasets
    from obp import policy as policies

    arrays = {}
    for seed in SEEDS:
        dataset = datasets.SyntheticBanditDataset(
            n_actions=ACTIONS,
            dim_context=CONTEXT,
            reward_function=datasets.logistic_reward_function,
            beta=2.0,  # the logging policy is a softmax of the mean rewards
            random_state=seed,
        )
        log = dataset.obtain_batch_bandit_feedback(n_rounds=ROUNDS)
        test = dataset.obtain_batch_bandit_feedback(n_rounds=ROUNDS)
        probs = []
        for repeat in REPEATS:
            learner = policies.NNPolicyLearner(
                n_actions=ACTIONS,
                dim_context=CONTEXT,
                off_policy_objective="ipw",
                hidden_layer_size=(HIDDEN,),
                learning_rate_init=RATE,
                batch_size=BATCH,
                max_iter=EPOCHS,
                alpha=0.0,
                n_iter_no_change=10**9,
                random_state=10 * seed + repeat,
            )
            for number, weight in enumerate(learner.nn_model.parameters()):
                arrays[f"first_{seed}_{repeat}_{number}"] = weight.detach().numpy().copy()
            columns = "context", "action", "reward", "pscore"
            learner.fit(**{name: log[name] for name in columns})
            probs.append(learner.predict_proba(context=test["context"])[:, :, 0])
        for name in ("context", "action", "reward", "pscore"):
            arrays[f"{name}_{seed}"] = log[name]
        arrays[f"test_{seed}"] = test["context"]
        arrays[f"means_{seed}"] = test["expected_reward"]
        arrays[f"logging_{seed}"] = test["pi_b"][:, :, 0]
        arrays[f"obp_{seed}"] = np.array(probs)
    np.savez_compressed(path, **arrays)


def make_network(keras, first_weights):
    """Returns a network with the first weights of that of Open Bandit Pipeline."""
    network = keras.Sequential(
        [
            keras.Input((CONTEXT,)),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(ACTIONS),
        ]
    )
    network.set_weights([x.T for x in first_weights])
    return network


def train_ours(path):
    """Prints the values of the logging policy and of the learned policies."""
    import keras
    import tensorflow as tf

    import tf_reinforce as tfr

    arrays, rows = np.load(path), []
    print("values: logging policy, Open Bandit Pipeline, tf_reinforce, best actions")
    for seed in SEEDS:
        log_and_test = [arrays[f"{name}_{seed}"] for name in NAMES]
        context, action, reward, pscore, test, means, logging = log_and_test
        values = []
        for repeat in REPEATS:
            keras.utils.set_random_seed(10 * seed + repeat)
            first = [arrays[f"first_{seed}_{repeat}_{number}"] for number in range(4)]
            network = make_network(keras, first)
            sample = tfr.layers.Sample(tfr.heads.Categorical(ACTIONS))
            policy = keras.Model(network.inputs, sample(network.outputs[0]))
            model = tfr.ScoreFunction(policy)
            model.compile(keras.optimizers.Adam(RATE, epsilon=1e-8))
            log = context.astype("float32"), action, reward.astype("float32"), pscore
            model.fit_logged(*log, batch_size=BATCH, epochs=EPOCHS, verbose=0)
            probs = tf.nn.softmax(network(test.astype("float32"))).numpy()
            values.append((probs * means).sum(1).mean())
        others = [(p * means).sum(1).mean() for p in arrays[f"obp_{seed}"]]
        ends = (logging * means).sum(1).mean(), means.max(1).mean()
        rows.append([ends[0], np.mean(others), np.mean(values), ends[1]])
        spread = np.std(others, ddof=1), np.std(values, ddof=1)
        print(f"seed {seed}:", *(f"{x:.4f}" for x in rows[-1]), end="; ")
        print("deviations of a training:", *(f"{x:.4f}" for x in spread), flush=True)
    rows = np.array(rows)
    difference = rows[:, 2] - rows[:, 1]
    error = difference.std(ddof=1) / np.sqrt(len(rows))
    print("means: ", *(f"{x:.4f}" for x in rows.mean(axis=0)))
    print(f"difference of the learned policies: {difference.mean():.4f} ± {error:.4f}")


if __name__ == "__main__":
    {"obp": train_obp, "ours": train_ours}[sys.argv[1]](sys.argv[2])
