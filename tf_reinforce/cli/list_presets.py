"""Runs the command `presets`, which lists presets and the returns they reach."""

import json

from tf_reinforce.settings import toml_files


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce presets`."""
    command = subparsers.add_parser(
        "presets",
        help="list the presets and the returns that they reach",
        description="Lists the presets with the returns of trainings that are measured "
        "in docs/presets.md and docs/results.md. With NAME, prints the settings of the "
        "preset, in the form of a preset file.",
    )
    command.set_defaults(command=run)
    command.add_argument("name", metavar="NAME", nargs="?", help="name of a preset")
    command.add_argument("--json", action="store_true", help="print JSON")


def run(options):
    """Runs `tf-reinforce presets` and returns the exit code."""
    if options.name is not None:
        settings = toml_files.read(options.name)
        path = toml_files.FOLDER / f"{options.name}.toml"
        text = json.dumps(settings, indent=2)
        if path.exists() and not options.json:
            text = path.read_text("utf-8").rstrip()
        print(text)
        return 0
    presets = {name: toml_files.read(name) for name in toml_files.names()}
    if options.json:
        print(json.dumps(presets, indent=2))
        return 0
    width = max(map(len, presets))
    print(f"{'preset':<{width}}  mean return of the trained policy")
    for name, settings in presets.items():
        print(f"{name:<{width}}  {settings['result']}")
    print("\nnext:\n  tf-reinforce train CartPole-v1 --preset")
    return 0
