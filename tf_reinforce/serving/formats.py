"""Lists the formats of `Reinforce.export`, and the function that writes a format."""

import keras

from tf_reinforce.serving import policy_functions
from tf_reinforce.serving import saved_model

# A writer takes the path, the dict of functions, and the layers whose weights they read.
WRITERS = {"tf_saved_model": saved_model.write}


def write(name, path, functions, layers):
    """Writes the exported functions of a policy in one of the formats of `WRITERS`.

    Args:
        name: String, the format, a key of `WRITERS`.
        path: Path of the exported file or folder.
        functions: Dict of functions from `policy_functions.policy_functions`.
        layers: Keras layers whose weights the exported functions read.

    Raises:
        ValueError: If two arguments of an exported function have the same name, or the
            file or folder at `path` cannot be replaced.
    """
    for function in functions.values():
        arguments = keras.tree.flatten(function.input_signature)
        policy_functions.check_distinct_names([spec.name for spec in arguments])
    WRITERS[name](path, functions, layers)
