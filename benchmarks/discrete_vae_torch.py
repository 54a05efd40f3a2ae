"""The side of storchastic in discrete_vae.py: the same network, estimators of PyTorch.

The arguments are the latent, the method, the seed, the number of epochs, and a .npz file
with the digits. The program prints one result as JSON. With the argument `bias`, it
prints how many standard errors the mean of many gradients is from the exact gradient, for
the logits of two small tasks.
"""

import itertools
import json
import sys
import time

import numpy as np
import storch
import torch
from torch.nn import functional

BATCH, WIDTH, RATE = 100, 128, 3e-3
LATENTS = {"bits": (200, 2), "categories": (20, 10)}


def score(methods, samples):
    options = {"n_samples": samples, "baseline_factory": "batch_average"}
    return methods.ScoreFunction("z", **options)


METHODS = {
    "leave_one_out": lambda m: score(m, 2),
    "leave_one_out_4": lambda m: score(m, 4),
    "rebar": lambda m: m.REBAR("z"),
    "arm": lambda m: m.ARM("z"),
    "disarm": lambda m: m.DisARM("z"),
    "without_replacement": lambda m: m.UnorderedSetEstimator("z", k=2),
    "without_replacement_4": lambda m: m.UnorderedSetEstimator("z", k=4),
    "gumbel_softmax": lambda m: m.GumbelSoftmax("z", initial_temperature=0.5),
}


class Model(torch.nn.Module):
    def __init__(self, latent, method):
        super().__init__()
        self.sites, self.size = LATENTS[latent]
        self.is_bits = latent == "bits"
        width = self.sites if self.is_bits else self.sites * self.size
        linear, relu = torch.nn.Linear, torch.nn.LeakyReLU(0.2)
        self.encoder = torch.nn.Sequential(linear(64, WIDTH), relu, linear(WIDTH, width))
        self.decoder = torch.nn.Sequential(linear(width, WIDTH), relu, linear(WIDTH, 64))
        for module in self.modules():
            if isinstance(module, linear):
                torch.nn.init.xavier_uniform_(module.weight)
                torch.nn.init.zeros_(module.bias)
        self.method = METHODS[method](storch.method)

    def posterior(self, logits):
        if self.is_bits:
            return torch.distributions.Bernoulli(probs=logits.sigmoid())
        logits = logits.reshape(logits.shape[:-1] + (self.sites, self.size))
        return torch.distributions.OneHotCategorical(probs=logits.softmax(-1))

    def decode(self, z):
        if z.dtype == torch.bool:
            z = z.float()
        if not self.is_bits:
            z = z.reshape(z.shape[:-2] + (self.sites * self.size,))
        return self.decoder(z)

    def costs(self, pixels):
        """Adds the two terms of the bound as costs, and samples by the method."""
        plate = storch.denote_independent(pixels, 0, "data")
        posterior = self.posterior(self.encoder(plate))
        entropy = posterior.entropy()
        storch.add_cost(-(entropy.sum(-1) if entropy.event_dims else entropy), "entropy")
        logits = self.decode(self.method(posterior))
        each = functional.binary_cross_entropy_with_logits(
            logits, plate.expand_as(logits), reduction="none"
        )
        storch.add_cost(each.sum(-1), "reconstruction")

    @torch.no_grad()
    def negative_bound(self, pixels, draws=50):
        posterior = self.posterior(self.encoder(pixels))
        costs = 0.0
        for _ in range(draws):
            logits = self.decode(posterior.sample())
            each = functional.binary_cross_entropy_with_logits(
                logits, pixels, reduction="none"
            )
            costs += each.sum(-1) / draws
        entropy = posterior.entropy().sum(-1)
        constant = self.sites * np.log(self.size)
        return float((costs - entropy + constant).mean())


def run(latent, method, seed, epochs, training, test):
    torch.manual_seed(seed)
    model = Model(latent, method)
    parameters = [*model.encoder.parameters(), *model.decoder.parameters()]
    own = [x for x in model.method.parameters() if x.requires_grad]
    optimizer = torch.optim.Adam([*parameters, *own], RATE, eps=1e-7)
    times = []
    for _ in range(epochs):
        for index in torch.randperm(len(training)).split(BATCH):
            optimizer.zero_grad()
            storch.reset()
            model.costs(training[index])
            storch.backward()
            optimizer.step()
        times.append(time.perf_counter())
    seconds = np.median(np.diff(times))
    return {
        "library": "storchastic",
        "latent": latent,
        "method": method,
        "seed": seed,
        "ms_per_step": 1000 * seconds / (len(training) // BATCH),
        "training": model.negative_bound(training[:500]),
        "test": model.negative_bound(test),
    }


# The logits of two bits and of two categories, with the weights of their costs (w · z)².
TASKS = {
    "bits": ([0.3, -0.8], [0.9, -0.6]),
    "categories": (
        [[0.2, -0.4, 0.9], [0.5, 0.0, -0.5]],
        [[1, -0.5, 0.2], [0.3, 0.8, -1]],
    ),
}


def exact_gradient(latent):
    """Returns the gradient of the expected cost of a small task."""
    numbers, weights = map(torch.tensor, TASKS[latent])
    logits = numbers.clone().requires_grad_()
    if latent == "bits":
        probs = torch.stack([1 - logits.sigmoid(), logits.sigmoid()], dim=1)
        terms = torch.stack([torch.zeros(2), weights], dim=1)
    else:
        probs, terms = logits.softmax(-1), weights
    expected = sum(
        probs[0, i] * probs[1, j] * (terms[0, i] + terms[1, j]) ** 2
        for i, j in itertools.product(range(probs.shape[1]), repeat=2)
    )
    expected.backward()
    return logits.grad.flatten()


def mean_gradient(latent, method, repeats=600, rows=64):
    """Returns the mean of `repeats` · `rows` gradients, and its standard error."""
    numbers, weights = map(torch.tensor, TASKS[latent])
    found = []
    for _ in range(repeats):
        storch.reset()
        logits = numbers.expand(rows, *numbers.shape).clone().requires_grad_()
        plate = storch.denote_independent(logits, 0, "data")
        if latent == "bits":
            posterior = torch.distributions.Bernoulli(probs=plate.sigmoid())
        else:
            posterior = torch.distributions.OneHotCategorical(probs=plate.softmax(-1))
        z = METHODS[method](storch.method)(posterior)
        z = z.float() if z.dtype == torch.bool else z
        products = (z * weights).sum(-1)
        products = products if latent == "bits" else products.sum(-1)
        storch.add_cost(products**2, "cost")
        storch.backward()
        found.append(rows * logits.grad.reshape(rows, -1))
    found = torch.cat(found)
    return found.mean(0), found.std(0) / len(found) ** 0.5


def print_bias():
    kinds = ("bits", "disarm"), ("categories", "without_replacement")
    both = [(x, y) for x in TASKS for y in ("leave_one_out", "rebar")]
    for latent, method in (*both, *kinds):
        mean, error = mean_gradient(latent, method)
        deviations = (mean - exact_gradient(latent)) / error
        print(latent, method, [round(x, 1) for x in deviations.tolist()], flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["bias"]:
        print_bias()
        sys.exit()
    latent, method, seed, epochs, file = sys.argv[1:]
    data = [torch.tensor(x) for x in np.load(file).values()]
    print(json.dumps(run(latent, method, int(seed), int(epochs), *data)))
