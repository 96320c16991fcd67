"""`python -m bub_redis.cli`: the command line where its console script is not on the path."""

import os
import sys

if __name__ == "__main__":
    if sys.path[0] == os.getcwd():
        # Behind what is installed: a user's `worker.py` in the current folder must not stand in for our package.
        sys.path.append(sys.path.pop(0))
    from bub_redis.cli import main

    main()
