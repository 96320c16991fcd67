"""The agent that the demo's workers run: two ordinary tools, and a scripted model unless `BUB_MODEL` names a real one.

The script decides by what a request shows and remembers nothing, so that any worker can take a turn up again.
"""

import json

from bub_redis.agent import Agent
from bub_redis.cli.demo import cast
from bub_redis.settings import load_settings
from bub_redis.testing import ModelRequest, Reply, ScriptedModel, call, calls, say


def order_status(order_id: str) -> dict[str, str]:
    """Look an order up: its state and where its parcel is."""
    return {"order": order_id, "state": "shipped", "parcel": "in the depot next to you"}


def delivery_days(order_id: str) -> list[str]:
    """The days on which an order can still be delivered."""
    return ["Thursday", "Friday"]


def agent() -> Agent:
    """The demo's agent, as `MODULE:ATTRIBUTE` names one."""
    return Agent(
        name="demo",
        model=load_settings().model or ScriptedModel(_reply),
        tools=[order_status, delivery_days],
        system_prompt="You serve a shop's customers. Look orders up with your tools. Be brief unless asked not to be.",
    )


_ANSWERS = {
    cast.OPENING_HOURS: "We open at nine on Saturdays and close at six.",
    cast.SUNDAY: "On Sundays we are closed.",
    cast.PARKING: "Yes, behind the house; the first hour is free.",
    cast.NEIGHBOUR: "Done: it goes to your neighbour if you are out.",
    cast.THANKS: "You are welcome.",
}
_RETURNS = (
    "Returning a parcel takes three steps. First, open your order in the shop and choose the things that go back; "
    "you need not say why. Second, print the label that we send you, or have the code on your phone scanned at the "
    "counter. Third, hand the parcel in at any post office within thirty days and keep the receipt: it is your proof "
    "until we have written to you. As soon as the parcel is with us we look through it, as a rule on the same day, "
    "and pay the money back the way you paid us. That takes two more days with most banks."
)


def _reply(request: ModelRequest) -> Reply:
    match request.prompt:
        case cast.ORDER:
            return _about_the_order(request)
        case cast.RETURNS:
            return say(_RETURNS, delay_s=0.035)
        case prompt:
            return say(_ANSWERS.get(prompt, "I only know the lines of the demo."), delay_s=0.02)


def _about_the_order(request: ModelRequest) -> Reply:
    if not request.tool_results:
        lookups = (call(tool, order_id="A-1042") for tool in ("order_status", "delivery_days"))
        return calls(*lookups, text="One moment, I look it up. ")
    status, days = (json.loads(result) for result in request.tool_results)
    answer = (
        f"Order {status['order']} has been {status['state']} and is {status['parcel']}. "
        f"It can come on {' or '.join(days)}, so I have chosen Friday for you."
    )
    return say(answer, delay_s=0.04)
