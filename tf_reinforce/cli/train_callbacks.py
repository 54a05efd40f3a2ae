"""Makes the callbacks of a training from the options of the command."""


def make(options, settings, directory):
    """Returns the list of Keras callbacks of a training, without those of every run.

    Args:
        options: The parsed options of `tf-reinforce train`.
        settings: Dict of the settings of the training, with the table `callbacks`.
        directory: `pathlib.Path` of the run directory.
    """
    from tf_reinforce import callbacks
    from tf_reinforce.callbacks import tensorboard

    table, result = settings["callbacks"], []
    if table.get("diagnose"):
        result.append(callbacks.Diagnostics())
    if (kind := table.get("tensorboard")) is not None:
        folder = directory / "tensorboard"
        if not any(directory.glob("checkpoints/*")):
            for path in folder.glob(f"*{tensorboard.SUFFIX}"):
                path.unlink()  # events of a process that was killed
        logger = callbacks.TensorBoardLogger(folder, histograms=kind == "histograms")
        result.append(logger)
    if (every := table.get("video")) is not None:
        from tf_reinforce.experiments import video_recorder

        limit = settings["evaluation"].get("max_episode_steps")
        recorder = video_recorder.VideoRecorder(
            options.env,
            directory / "videos",
            every,
            env_kwargs=settings["env_kwargs"],
            max_episode_steps=limit,
        )
        result.append(recorder)
    return result
