"""What every head promises."""

import abc
import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import arguments, seeding, spaces


@dataclasses.dataclass(frozen=True)
class Support:
    """Where the numbers of a raw action lie, each by itself."""

    low: float | list  # one number or one per number of the action; may be infinite
    high: float | list
    atoms: bool  # whether finite ends have a probability of their own


class Head(keras.layers.Layer, abc.ABC):
    """Turns the outputs of a policy model into a distribution over actions.

    A sample is a function of outputs and noise, so that eager mode, acting and the
    exported policy draw the same action from the same numbers. Log-probabilities and
    entropy come from TensorFlow Probability. The *raw* action is what is sampled,
    stored and scored; `to_environment` turns it into what the environment receives.

    A head works in the type of its outputs: float64 in, float64 out.

    Attributes:
        outputs_size: Int, how many numbers the policy puts out per observation.
        noise: `Noise`, what one sample needs.
        action_shape: Tuple, shape of one raw action.
        action_dtype: Type of a raw action; `None`: that of the outputs.
        mask_size: Int, how many entries a mask of illegal choices has; zero for a head
            whose actions are all legal, always.
        support: `Support`, where real raw actions lie; `None`: anywhere, and a sample
            follows the noise smoothly.

    In a `Composite`, `noise` is a nested structure, and its leaves have the shape, the
    type and the support: `raw` describes an action of any head.
    """

    outputs_size: int
    noise: seeding.Noise
    action_shape: tuple
    action_dtype: str | None
    mask_size: int = 0
    support: Support | None = None

    def __setattr__(self, name, value):
        arguments.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    def raw(self, dtype):
        """One raw action as a `tf.TensorSpec`, or a structure of them.

        Args:
            dtype: The type of the outputs.
        """
        return tf.TensorSpec(self.action_shape, self.action_dtype or dtype)

    def set_float_type(self, dtype):
        """Keeps the weights that `build` will make in the type of the outputs.

        An agent calls it with the type of its policy: `"float32"` or `"float64"`.
        """
        self.dtype_policy = dtype

    @abc.abstractmethod
    def distribution(self, outputs):
        """The `tfd.Distribution` over raw actions for `[..., P]` float outputs.

        Its `log_prob` and `entropy` give one number per row: put the axes of an action
        inside with `tfd.Independent`. Both are needed, the entropy also for the logs.
        Gradients flow from its log-probabilities to the outputs and to the head's
        own weights: build it inside the tape.
        """

    def scored(self, actions):
        """Of what real `log_prob` is the density: the raw action, or a function of it."""
        return actions

    def eligibility(self, outputs, actions):
        """What a change of each output does to the log-probability of an action.

        Ours are closed forms; a head that states none is differentiated automatically.

        Args:
            outputs: `[..., P]` float tensor.
            actions: `[..., *action_shape]` raw actions.

        Returns:
            `[..., P]` float, d ln π(a|s) / d outputs. Multiplied by an advantage, this
            is what REINFORCE sends back into the output neurons. Its expectation over
            the head's own actions is zero. Williams (1992), section 4.
        """
        outputs = tf.convert_to_tensor(outputs)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            log_probs = self.distribution(outputs).log_prob(actions)
        none = tf.UnconnectedGradients.ZERO
        return tape.gradient(log_probs, outputs, unconnected_gradients=none)

    @abc.abstractmethod
    def sample(self, outputs, noise):
        """The raw actions that this noise picks: `[..., P]`, `[..., *noise.shape]`."""

    @abc.abstractmethod
    def mode(self, outputs):
        """The most likely raw actions for `[..., P]` outputs."""

    @abc.abstractmethod
    def parameters(self, outputs):
        """The distribution's parameters by name: a dict of `[..., …]` tensors."""

    @abc.abstractmethod
    def to_environment(self, actions):
        """Raw actions `[N, …]` in the environment's own units, inside its bounds."""

    def spread(self, outputs):
        """How far each real number of an action scatters, in half widths of its bounds.

        Args:
            outputs: `[N, P]` float tensor.

        Returns:
            `[N, R]` float, a standard deviation each; R is zero where no number is real.
            Without bounds the unit is the deviation before training. Zero: always the
            same action.
        """
        return outputs[:, :0]

    def at_bounds(self, actions):
        """Which real numbers of an action the environment receives at a bound.

        Nearer to it than a thousandth of the width counts: squashed numbers come near.

        Args:
            actions: Raw actions, `[N, …]`.

        Returns:
            `[N, R]` bool; R is zero where no number has bounds to stand at.
        """
        first = keras.tree.flatten(actions)[0]
        return tf.zeros([tf.shape(first)[0], 0], tf.bool)

    def units(self):
        """Where the outputs of a policy best begin, and how far one unit of them reaches.

        Returns:
            Offsets and scales, two float64 arrays `[outputs_size]`: zeros and ones where
            outputs are not in the units of the environment. The policy that
            `Reinforce.for_env` makes ends with them.
        """
        return np.zeros(self.outputs_size), np.ones(self.outputs_size)

    def masked(self, outputs, mask):
        """The outputs under which an illegal choice has no probability.

        Everything else this head does is right for masked outputs: log-probabilities,
        entropy, samples, mode and eligibility, which is zero where nothing can be chosen.

        Args:
            outputs: `[..., P]` float tensor.
            mask: `[..., mask_size]` int8 tensor; zero is illegal.

        Returns:
            `[..., P]` float, finite.
        """
        return outputs

    def read_mask(self, mask):
        """A mask as an environment gives it, flat.

        Args:
            mask: What `Space.sample(mask=…)` takes: an array, or a tuple of arrays, or
                `None`, which rules nothing out.

        Returns:
            `[mask_size]` int8.

        Raises:
            ValueError: when it does not have so many entries.
        """
        if mask is None:
            return np.ones(self.mask_size, "int8")
        parts = keras.tree.flatten(mask) or [[]]
        flat = np.concatenate([np.ravel(part) for part in parts])
        whole = flat.dtype.kind in "biu" or np.isin(flat, (0, 1)).all()
        if flat.shape != (self.mask_size,) or not whole:
            raise ValueError(
                f"a mask of {self!r} must have {self.mask_size} entries, 0 or 1. "
                f"Received: {mask!r}"
            )
        return (flat != 0).astype("int8")

    def leaves_choice(self, mask):
        """`[...]` bool: whether masks `[..., mask_size]` (NumPy) leave a legal action."""
        return np.ones(mask.shape[:-1], bool)

    def legal(self, actions, mask):
        """`[T, B]` bool: whether raw actions `[T, B, …]` are legal under `[T, B, M]`."""
        return np.ones(mask.shape[:-1], bool)

    def check_outputs(self, shape):
        """Refuses outputs of the wrong width.

        Args:
            shape: Shape of the policy's outputs, batch axis first.

        Raises:
            ValueError: with the width expected and received.
        """
        if len(shape) != 2 or shape[-1] != self.outputs_size:
            raise ValueError(
                f"{self!r} needs a policy that puts out {self.outputs_size} numbers per "
                f"observation, shape (batch, {self.outputs_size}). "
                f"Received: a policy whose outputs have the shape {tuple(shape)}. "
                f"End it with keras.layers.Dense({self.outputs_size})."
            )

    def check_actions(self, actions, lengths, masks=None):
        """Refuses raw actions of a record that this head cannot have sampled.

        Args:
            actions: `[T, B, …]` NumPy array.
            lengths: `[B]` ints; the padding is not looked at.
            masks: `[T, B, M]` int8; `None` or M = 0 where nothing is masked.

        Raises:
            ValueError: naming the action, the step and the episode.
        """
        inside = np.arange(len(actions))[:, None] < lengths
        possible = self.possible(actions).reshape(*inside.shape, -1).all(-1)
        wrong = np.argwhere(inside & ~possible)
        kind = "raw"
        if not len(wrong) and masks is not None and masks.shape[-1]:
            wrong, kind = np.argwhere(inside & ~self.legal(actions, masks)), "legal"
        if len(wrong):
            step, episode = wrong[0]
            raise ValueError(
                f"`actions` must be {kind} actions of {self!r}. Received: "
                f"{actions[step, episode]} at step {step} of episode {episode}"
            )

    def check_space(self, space):
        """Refuses an action space whose actions this head does not make.

        Raises:
            ValueError: with both. A head of your own decides for itself.
        """
        if not self.fits(space):
            raise ValueError(
                f"{self!r} does not make actions of the space {space!r}. Give a head "
                "that does, or leave `head` out, and it is made from the space "
                f"(`tfr.heads.for_space`). Supported: {spaces.ACTIONS}."
            )

    def fits(self, space):
        """Whether all actions this head sends belong to the space."""
        return True

    def possible(self, actions):
        """Which entries of a NumPy array `[T, B, …]` are raw actions: bools to match.

        A head with whole-number actions says here which ones there are.
        """
        return np.isfinite(actions)


def constant(values, like):
    """A constant in the type of a tensor."""
    return tf.convert_to_tensor(values, dtype=like.dtype)


def marked(mask, mark):
    """`[..., M]` bool tensor: where a mask has this mark."""
    return tf.equal(mask, mark)
