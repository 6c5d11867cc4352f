# SPDX-License-Identifier: BSD-3-Clause
"""python -m berth: the command, an executable that lies in the package."""

import os
import sys

COMMAND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_command")


def main():
    """Becomes the command, with the arguments of this process: output and exit codes are its own."""
    try:
        os.execv(COMMAND, ["berth", *sys.argv[1:]])
    except OSError as error:
        print(f"berth: {COMMAND} cannot be run: {os.strerror(error.errno)}; install the package anew",
              file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
