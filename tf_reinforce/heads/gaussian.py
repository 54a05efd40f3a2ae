"""Real actions with a Gaussian distribution."""

import math

import keras
import tensorflow_probability as tfp

from tf_reinforce.functional import eligibility
from tf_reinforce.heads import normal


@keras.saving.register_keras_serializable("tf_reinforce")
class Gaussian(normal.GaussianHead):
    """A vector of `A` reals; the policy puts out `[..., A]` means.

        a = μ(s) + σ ε,    ε ~ N(0, 1),    log σ learned, the same for every s

    The unclipped sample is stored and scored; only the environment sees it clipped.
    Scoring the clipped action as if it were unclipped would bias the gradient;
    `ClippedGaussian` scores it rightly.

    Args:
        size: Positive int, `A`.
        low: Number or `A` numbers, the least action the environment takes.
        high: Number or `A` numbers, the greatest.
        shape: Shape of the environment's action. Defaults to `(size,)`.
        whole: Bool. True for an environment that takes whole numbers: it receives the
            nearest one inside the bounds.
        initial_scale: Positive float or `A` of them, σ before training, in the units
            of the action.
        state_dependent_scale: Bool. True: the policy puts out `[..., 2 A]`, the means
            and then what changes log σ, at most a hundredfold; see `normal.GaussianHead`.

    Example:

    >>> head = Gaussian(1, low=-2.0, high=2.0)
    >>> head.build((None, 1))
    >>> raw = head.sample(keras.ops.array([[1.5]]), noise=keras.ops.array([[3.0]]))
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([[4.5]], [[2.0]])

    Reference:
        Williams (1992), section 6. doi:10.1007/BF00992696
    """

    def __init__(self, size, *, low=-math.inf, high=math.inf, **kwargs):
        super().__init__(size, low, high, **kwargs)

    def distribution(self, outputs):
        parameters = self.parameters(outputs)
        return tfp.distributions.MultivariateNormalDiag(
            loc=parameters["mean"], scale_diag=parameters["scale"]
        )

    def eligibility(self, outputs, actions):
        mean, scale = self.parameters(outputs).values()
        return self.to_outputs(outputs, eligibility.gaussian(mean, scale, actions))
