"""Defines the base class of the Keras models that train other models."""

from typing import Any

import keras

from tf_reinforce.support import files


class AtomicModel(keras.Model):
    """A Keras model that writes its files completely, or leaves the old ones."""

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes the model to a `.keras` file atomically, as `Reinforce.save` does."""
        target = filepath, overwrite, ".keras", f"a `{type(self).__name__}`"
        with files.atomic_model_file(*target) as temporary:
            super().save(temporary, **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Writes the weights to one file atomically, in the format of Keras."""
        target = filepath, overwrite, ".weights.h5", "weights", self
        with files.atomic_model_file(*target) as temporary:
            super().save_weights(temporary)

    @property
    def skips_overflow(self) -> bool:
        """Returns whether the optimizer skips steps whose gradients overflow."""
        return isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
