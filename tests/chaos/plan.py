"""What a chaos run does: sizes, and the turns that are sent."""

import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Plan:
    """One run; the seed decides what is sent and what goes wrong when."""

    seed: int
    workers: int = 4
    sessions: int = 60
    turns: int = 1500
    faults_s: float = 60.0
    """How long faults go on, if the turns have not all been sent and ended before."""
    pause_s: tuple[float, float] = (0.1, 0.6)
    """Shortest and longest pause between two faults."""
    server_kills: int = 6
    on_cluster: bool = False
    """Whether the tapes are on a cluster, whose nodes are killed too and whose slots move."""
    settle_s: float = 60.0
    """How long the turns may take to end once nothing goes wrong any more."""


@dataclass
class Sent:
    """What one session was sent, in order; what the server accepted is what must be found."""

    prompts: dict[str, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    """Turns of which the server said that they never started."""
    steers: dict[str, str] = field(default_factory=dict)
    unused: set[str] = field(default_factory=set)
    """Steering messages whose result says that they were cancelled and never used."""


def prompt(randomly: random.Random) -> str:
    """Something to ask: answered at once, with tools, slowly, or with a slow tool."""
    number = randomly.randrange(1000)
    return randomly.choice(
        [
            f"hello {number}",
            f"order {number}",
            f"slowly one two three {number}",
            f"wait {randomly.uniform(0.05, 0.3):.2f}",
        ]
    )
