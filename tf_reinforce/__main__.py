"""`python -m tf_reinforce` is the command line."""

import sys

from tf_reinforce import cli

if __name__ == "__main__":
    sys.exit(cli.main())
