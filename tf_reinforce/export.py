"""The policy as a SavedModel that needs none of our code."""

import contextlib
import io

import keras
import tensorflow as tf

from tf_reinforce import checkpoints, seeding, spaces

_NAMES = ("saved_model.pb", "fingerprint.pb", "variables", "assets")


def endpoints(outputs_of, head, structure, action_dtype, dtype):
    """The four functions of a policy that others call, traced for any batch size.

    Args:
        outputs_of: Function from observations `[N, …]` to policy outputs `[N, P]`.
        head: `heads.Head`, built.
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        action_dtype: Type in which the environment takes its actions.
        dtype: Float type of the outputs.

    Returns:
        Dict of `tf.function`s that return dicts of tensors:

        `act(observation)`: `action`, the most likely one, in environment units.
        `sample(observation, seed)`: `action`, and `raw_action` as it is scored; the
        same seed draws the same actions.
        `distribution(observation)`: its parameters by name.
        `log_prob(observation, raw_action)`: `log_prob`, `[N]`.
    """
    observation = keras.tree.map_structure(
        lambda leaf, name: tf.TensorSpec((None, *leaf.shape), leaf.dtype, name),
        structure,
        spaces.names(structure),
    )
    raw = tf.TensorSpec((None, *head.action_shape), head.action_dtype or dtype)
    seed = tf.TensorSpec((), tf.int64)

    def sent(actions):
        return tf.cast(head.to_environment(actions), action_dtype)

    def act(observation):
        return {"action": sent(head.mode(outputs_of(observation)))}

    def sample(observation, seed):
        outputs = outputs_of(observation)
        shape = tf.concat([tf.shape(outputs)[:1], head.noise.shape], axis=0)
        noise = seeding.noise(seed, head.noise.kind, shape, outputs.dtype)
        actions = head.sample(outputs, noise)
        return {"action": sent(actions), "raw_action": actions}

    def distribution(observation):
        return head.parameters(outputs_of(observation))

    def log_prob(observation, raw_action):
        outputs = outputs_of(observation)
        return {"log_prob": head.distribution(outputs).log_prob(raw_action)}

    signatures = {
        act: [observation],
        sample: [observation, seed],
        distribution: [observation],
        log_prob: [observation, raw],
    }
    return {
        function.__name__: tf.function(
            function, input_signature=signature, autograph=False
        )
        for function, signature in signatures.items()
    }


def saved_model(path, functions, layers):
    """Writes the endpoints as a SavedModel; a folder that was there is replaced whole.

    Args:
        path: Path of the folder.
        functions: See `endpoints`.
        layers: Keras layers whose weights the functions read.
    """
    archive = keras.export.ExportArchive()
    for layer in layers:
        archive.track(layer)
    for name, function in functions.items():
        archive.add_endpoint(name, function)
    # TensorFlow prints a description of the endpoints; `endpoints` has a better one.
    quiet = contextlib.redirect_stdout(io.StringIO())
    with checkpoints.replacing_folder(path, _NAMES) as aside, quiet:
        archive.write_out(aside, verbose=False)
