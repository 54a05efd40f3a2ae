"""Trains the tiny GPT-2 of `examples/adding.py` with `RLOOTrainer` of TRL, in PyTorch.

    python -m venv .venv-trl && .venv-trl/bin/pip install torch trl
    .venv-trl/bin/python benchmarks/adding_trl.py --seed 0

Architecture, task, reward, group size, KL coefficient, optimizer and learning rate are
those of the example. The two programs are run one after the other, on the same machine.
The program prints the share of right answers every 25 updates, as the example does.
"""

import argparse
import tempfile
import time

import datasets
import tokenizers
import torch
import transformers
import trl

CHARACTERS = "0123456789+="
START = "<|endoftext|>"
PAIRS = [(a, b) for a in range(10) for b in range(10)]


def make_tokenizer():
    vocabulary = {"<pad>": 0, **{c: i + 1 for i, c in enumerate(CHARACTERS)}}
    vocabulary |= {START: 13, "==": 14}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="<pad>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token=START,
        bos_token=START,
        padding_side="left",
    )


def make_model(seed):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=15,
        n_positions=8,
        n_embd=32,
        n_layer=1,
        n_head=2,
        n_inner=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=13,
        eos_token_id=13,
        pad_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def right_characters(prompts, completions, completion_ids, answer, **kwargs):
    rewards = []
    for completion, ids, target in zip(completions, completion_ids, answer):
        matches = [x == y for x, y in zip(completion, target)]
        right = (matches + [False]).index(False)
        ends = right == len(target) == len(completion) and ids[-1] == 13
        rewards.append((right + ends) / (len(target) + 1))
    return rewards


class Evaluation(transformers.TrainerCallback):
    """Prints the share of right greedy answers, and stops when it reaches a target."""

    def __init__(self, tokenizer, target):
        self.tokenizer, self.target, self.start = tokenizer, target, None

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = time.time()

    def on_step_end(self, args, state, control, model, **kwargs):
        if state.global_step % 25:
            return
        share = accuracy(model, self.tokenizer)
        line = f"update {state.global_step}, {time.time() - self.start:.0f} s"
        print(f"{line}: {share:.0%} right", flush=True)
        control.should_training_stop = share >= self.target


def accuracy(model, tokenizer):
    prompts = [f"{START}{a}+{b}=" for a, b in PAIRS]
    inputs = tokenizer(prompts, return_tensors="pt", add_special_tokens=False)
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    texts = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :])
    right = [
        text.split("<pad>")[0] == f"{a + b}{START}"
        for text, (a, b) in zip(texts, PAIRS, strict=True)
    ]
    return sum(right) / len(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=1000)
    options = parser.parse_args()
    tokenizer, model = make_tokenizer(), make_model(options.seed)
    rows = [{"prompt": f"{START}{a}+{b}=", "answer": str(a + b)} for a, b in PAIRS]
    with tempfile.TemporaryDirectory() as folder:
        # The trainer loads model and reference from a folder.
        model.save_pretrained(f"{folder}/start")
        tokenizer.save_pretrained(f"{folder}/start")
        config = trl.RLOOConfig(
            folder,
            use_cpu=True,
            seed=options.seed,
            num_generations=8,
            per_device_train_batch_size=800,
            max_completion_length=3,
            beta=0.05,
            learning_rate=5e-3,
            adam_beta2=0.95,
            max_grad_norm=1e9,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,
            bf16=False,
            max_steps=options.updates,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = trl.RLOOTrainer(
            model=f"{folder}/start",
            reward_funcs=right_characters,
            args=config,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Evaluation(tokenizer, 0.95)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
