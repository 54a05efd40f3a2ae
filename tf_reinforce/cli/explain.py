"""Runs the command `explain`, which explains the gradient of one action."""

from tf_reinforce.support import startup


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce explain`."""
    command = subparsers.add_parser(
        "explain",
        help="print the gradient of one action's log-probability",
        description="Prints the characteristic eligibility, d log-probability / d "
        "parameter, in closed form beside automatic differentiation. Give --probs or "
        "--logits with --action or --counts, or --mean, --std and --sample. With "
        "--counts alone, all probabilities are equal.",
    )
    command.set_defaults(command=run)
    add = command.add_argument
    add("--probs", type=float, nargs="+", metavar="P", help="relative probabilities")
    add("--logits", type=float, nargs="+", metavar="Z")
    add("--action", type=float, metavar="A", help="the sampled category, from 0")
    add(
        "--counts",
        type=float,
        nargs="+",
        metavar="N",
        help="how often each category was sampled",
    )
    add("--mean", type=float, nargs="+", metavar="M", help="of a diagonal Gaussian")
    add("--std", type=float, nargs="+", metavar="S")
    add("--sample", type=float, nargs="+", metavar="Y")


def run(options):
    """Runs `tf-reinforce explain` and returns the exit code."""
    arguments = {
        name: getattr(options, name)
        for name in ("probs", "logits", "action", "counts", "mean", "std", "sample")
        if getattr(options, name) is not None
    }
    startup.import_tensorflow()
    from tf_reinforce.functional import explanation

    print(explanation.text(**arguments))
    return 0
