"""Optimizers that average weights, and leave the averages behind."""


def steps_made(optimizer):
    """How many steps an optimizer has made: those of the one inside, if it has one."""
    return int(getattr(optimizer, "inner_optimizer", optimizer).iterations)


def leave(optimizer, before=0):
    """Puts the averages of an optimizer that averages weights in the place of these.

    As Keras does at the end of `fit`, but only if a step was made since so many were:
    averages begin at zero. What is frozen by now stays as it is.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.use_ema and int(inner.iterations) not in (0, before):
        averages = inner._model_variables_moving_average
        # Keras would pair them with the variables of today, of which some may be frozen.
        for variable, average in zip(inner._trainable_variables, averages, strict=True):
            if variable.trainable and average is not None:
                variable.assign(average)
