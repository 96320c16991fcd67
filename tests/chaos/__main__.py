"""`python -m tests.chaos --seed 7`: a long run; exits non-zero if anything is wrong."""

import argparse
import asyncio
import os
import random
import sys

from tests.chaos.plan import Plan
from tests.chaos.run import chaos

parser = argparse.ArgumentParser(description="Kill workers and servers at random and judge the tapes.")
parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
parser.add_argument("--turns", type=int, default=1500)
parser.add_argument("--sessions", type=int, default=60)
parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on")
parser.add_argument("--cluster", action="store_true", help="tapes on a Redis Cluster, whose slots move")
given = parser.parse_args()
plan = Plan(given.seed, turns=given.turns, sessions=given.sessions, faults_s=given.seconds, on_cluster=given.cluster)
sys.exit(1 if asyncio.run(chaos(plan, os.environ.get("BUB_TEST_SERVER"))) else 0)
