"""Teaches a language model to add two digits, from rewards alone.

    python examples/adding.py [--seed SEED] [--updates UPDATES]
    python examples/adding.py --preset gemma3_1b

The first command trains a GPT-2 of 13,000 random weights: it has never seen a text. The
second command trains the adapters (LoRA) of a pretrained model of KerasHub, whose weights
KerasHub downloads, or reads from a folder. The reward of a completion is the share of its
characters that are right, counted from the first one.
"""

import argparse
import time

import keras
import keras_hub

import tf_reinforce as tfr

CHARACTERS = "0123456789+="
END = 13


def make_tasks():
    """Returns the prompts `0+0=` to `9+9=`, and the answers."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    return {
        "prompts": [f"{a}+{b}=" for a, b in pairs],
        "answer": [str(a + b) for a, b in pairs],
    }


def make_tiny_model():
    """A GPT-2 with one layer, which knows fifteen tokens."""
    vocabulary = {"<pad>": 0, **{c: i + 1 for i, c in enumerate(CHARACTERS)}}
    vocabulary |= {"<|endoftext|>": END, "==": END + 1}
    # The tokenizer needs at least one merge of two tokens.
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary, merges=["= ="])
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=END + 2,
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=128,
        max_sequence_length=8,
        dropout=0.0,
    )
    return keras_hub.models.GPT2CausalLM(backbone, preprocessor)


def right_characters(completions, answer, truncated):
    """The share of right characters; a completion must also end in time."""
    rewards = []
    for completion, target, is_truncated in zip(completions, answer, truncated):
        matches = [x == y for x, y in zip(completion, target)]
        right = (matches + [False]).index(False)
        ends = right == len(target) == len(completion) and not is_truncated
        rewards.append((right + ends) / (len(target) + 1))
    return rewards


def exact(completions, answer, truncated):
    """One for the right answer, else zero."""
    rows = zip(completions, answer, truncated)
    return [float(x == y and not is_truncated) for x, y, is_truncated in rows]


class StopAt(keras.callbacks.Callback):
    """Prints the share of right answers, and stops when it reaches a target."""

    def __init__(self, target):
        super().__init__()
        self.target, self.start = target, time.time()

    def on_epoch_end(self, epoch, logs):
        if "val_reward_exact" in logs:
            share = logs["val_reward_exact"]
            seconds = time.time() - self.start
            print(f"update {epoch + 1}, {seconds:.0f} s: {share:.0%} right", flush=True)
            self.model.stop_training = share >= self.target


def train_tiny(seed, updates, target=0.95):
    """Returns a tiny model that learns to add, and Keras' `History`."""
    keras.utils.set_random_seed(seed)
    model = tfr.sequences.SequenceReinforce(
        make_tiny_model(),
        [right_characters, exact],
        reward_weights=[1.0, 0.0],  # `exact` is only logged
        group_size=8,
        max_completion_length=3,
        seed=seed,
    )
    model.compile(keras.optimizers.Adam(5e-3, beta_2=0.95), jit_compile=True)
    tasks = make_tasks()
    share = model.evaluate(tasks)["reward_exact"]
    print(f"before training: {share:.0%} right", flush=True)
    history = model.fit(
        tasks,
        batch_size=len(tasks["prompts"]),
        epochs=updates,
        validation_data=tasks,
        validation_freq=25,
        callbacks=[StopAt(target)],
        verbose=0,
    )
    return model, history


def train_preset(preset, seed, updates):
    """Returns a pretrained model whose adapters learn to add, and Keras' `History`."""
    causal_lm = keras_hub.models.CausalLM.from_preset(preset)
    causal_lm.backbone.enable_lora(4)
    model = tfr.sequences.SequenceReinforce(
        causal_lm,
        [right_characters, exact],
        reward_weights=[1.0, 0.0],
        group_size=8,
        kl_coef=0.02,
        max_completion_length=3,
        microbatch_size=16,
        seed=seed,
    )
    model.compile(keras.optimizers.Adam(1e-4))
    tasks = make_tasks()
    history = model.fit(
        tasks,
        batch_size=16,
        steps_per_epoch=1,
        epochs=updates,
        validation_data=tasks,
        validation_freq=25,
        callbacks=[StopAt(0.99)],
        verbose=0,
    )
    return model, history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--preset", help="a preset of KerasHub, or a folder with one")
    options = parser.parse_args()
    if options.preset is None:
        model, _ = train_tiny(options.seed, options.updates)
    else:
        model, _ = train_preset(options.preset, options.seed, options.updates)
    prompts = ["3+4=", "9+8=", "5+5="]
    for prompt, completion in zip(prompts, model.generate(prompts)):
        print(prompt + completion)
