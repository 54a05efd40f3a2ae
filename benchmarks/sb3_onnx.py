"""Writes a policy of Stable-Baselines3 for CartPole-v1 to an ONNX file.

    pip install stable-baselines3 onnx onnxscript    # in an environment of its own
    python benchmarks/sb3_onnx.py sb3.onnx

The policy is the `MlpPolicy` of A2C without training: two hidden layers of 64 units. The
ONNX function returns the most likely actions, like the function `act` of an export.
"""

import sys

import stable_baselines3
import torch


class Act(torch.nn.Module):
    """Returns the most likely actions of a policy, without its value function."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, observation):
        features = self.policy.extract_features(observation)
        outputs = self.policy.mlp_extractor.forward_actor(features)
        return self.policy.action_net(outputs).argmax(-1)


def main(path):
    """Writes the ONNX file, for any batch size."""
    model = stable_baselines3.A2C("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    torch.onnx.export(
        Act(model.policy).eval(),
        (torch.zeros(2, 4),),
        path,
        input_names=["observation"],
        output_names=["action"],
        dynamic_shapes={"observation": {0: torch.export.Dim("batch")}},
        dynamo=True,
    )


if __name__ == "__main__":
    main(sys.argv[1])
