"""`python -m bub_redis.cli`: the command line where its console script is not on the path."""

from bub_redis.cli.app import main

if __name__ == "__main__":
    main()
