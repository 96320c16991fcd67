"""Who says what in the demo: a shop's customers, one session each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A turn to be enqueued."""

    session: str
    turn_id: str
    prompt: str


OPENING_HOURS = "When do you open on Saturday?"
SUNDAY = "And on Sunday?"
PARKING = "Thanks! Is there parking?"
ORDER = "Where is my order A-1042? I am in on Friday only."
NEIGHBOUR = "Then leave it with my neighbour, please."
RETURNS = "Explain at length, in 150 words, how I return a parcel."
THANKS = "That helps, thank you!"

QUICK_LINES = (
    Line("customer-7", "msg-1", OPENING_HOURS),
    Line("customer-7", "msg-2", SUNDAY),
    Line("customer-7", "msg-3", PARKING),
)
LIVE_LINES = (
    Line("customer-42", "msg-1", ORDER),
    Line("customer-42", "msg-2", NEIGHBOUR),
)
"""The first is followed live; the model calls tools in it."""
SLOW_LINES = (
    Line("customer-99", "msg-1", RETURNS),
    Line("customer-99", "msg-2", THANKS),
)
"""The worker that runs the first is killed."""
