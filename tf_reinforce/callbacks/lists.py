"""Makes the list of callbacks of a `fit` or `evaluate`."""

import keras


def callback_list(callbacks, model, *, verbose, add_progbar, epochs, steps, history):
    """Returns Keras' `CallbackList`, or `callbacks` if it is already one.

    Args:
        callbacks: List of Keras callbacks, or `None`, or `CallbackList`.
        model: Keras model that the callbacks receive.
        verbose: As in `keras.Model.fit`.
        add_progbar: Bool, whether a progress bar is added.
        epochs: Int, the number of epochs.
        steps: Int, the number of steps of an epoch, or `None` if it is not known.
        history: Bool, whether Keras' `History` is added.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=history,
        add_progbar=add_progbar,
        verbose=1 if verbose == "auto" else verbose,
        epochs=epochs,
        steps=steps,
        model=model,
    )
