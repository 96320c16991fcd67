"""docs/backend.md cannot lie: its application is run, before a real server and worker."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from bub_redis.settings import Settings
from bub_redis.turns.runner import SHOWN
from tests.redis.agents import agent
from tests.redis.readme import ROOT, blocks
from tests.redis.workers import working

_ROW = re.compile(r"^\| `(\w+)`(?:, `(\w+)`)? \|", re.MULTILINE)


@pytest.fixture
async def browser(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx2.AsyncClient]:
    """Requests to the page's application, while it and a worker run."""
    monkeypatch.setenv("BUB_NAMESPACE", settings.namespace)
    (source,) = [block.text for block in blocks("docs/backend.md") if block.language == "python"]
    page: dict[str, Any] = {}
    exec(source.replace("redis://localhost:6379/0", settings.queue_address), page)  # noqa: S102 - our own page
    app = page["app"]
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        working(settings, agent),
        httpx2.AsyncClient(transport=transport, base_url="http://backend") as client,
    ):
        yield client


async def events(browser: httpx2.AsyncClient, turn: str, **headers: str) -> list[dict[str, Any]]:
    """What an EventSource is told, up to the end."""
    response = await browser.get(f"{turn}/events", headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    told = [dict(line.split(": ", 1) for line in event.split("\n")) for event in response.text.split("\n\n") if event]
    return [{**event, "data": json.loads(event["data"])} for event in told]


async def test_a_turn_is_sent_once_and_streamed(browser: httpx2.AsyncClient) -> None:
    turn = "/sessions/customer/turns/t1"
    for _ in range(2):
        assert (await browser.put(turn, json={"text": "order 7"})).status_code == 202
    told = await events(browser, turn)
    assert [event["event"] for event in told][-1] == "finished"
    assert "".join(event["data"]["delta"] for event in told if event["event"] == "text").startswith("done: ")
    said = (await browser.get("/sessions/customer")).json()
    assert [message["content"] for message in said if message["role"] == "user"] == ["order 7"]


async def test_it_is_picked_up_behind_the_last_event(browser: httpx2.AsyncClient) -> None:
    turn = "/sessions/customer/turns/t1"
    await browser.put(turn, json={"text": "order 7"})
    told = await events(browser, turn)
    place = [event["event"] for event in told].index("tool_call")
    assert await events(browser, turn, **{"last-event-id": told[place]["id"]}) == told[place + 1 :]


async def test_behind_the_last_event_there_is_nothing(browser: httpx2.AsyncClient) -> None:
    """Why the page closes on `finished`."""
    turn = "/sessions/customer/turns/t1"
    await browser.put(turn, json={"text": "order 7"})
    told = await events(browser, turn)
    assert await events(browser, turn, **{"last-event-id": told[-1]["id"]}) == []


async def test_arguments_are_a_string_of_json(browser: httpx2.AsyncClient) -> None:
    turn = "/sessions/customer/turns/t1"
    await browser.put(turn, json={"text": "order 7"})
    (told,) = [event["data"] for event in await events(browser, turn) if event["event"] == "tool_call"]
    assert json.loads(told["tool_calls"][0]["arguments"]) == {"order": "7"}


async def test_a_turn_that_waits_is_told_with_an_id_to_begin_at(browser: httpx2.AsyncClient) -> None:
    await browser.put("/sessions/customer/turns/t1", json={"text": "wait 0.5"})
    await browser.put("/sessions/customer/turns/t2", json={"text": "order 7"})
    told = await events(browser, "/sessions/customer/turns/t2")
    assert (told[0]["event"], told[0]["id"]) == ("queued", "0-0")
    assert told[-1]["event"] == "finished"


async def test_it_is_talked_into_and_cancelled(browser: httpx2.AsyncClient) -> None:
    turn = "/sessions/customer/turns/t1"
    await browser.put(turn, json={"text": "wait 60"})
    assert (await browser.put(f"{turn}/steers/s1", json={"text": "hurry"})).json() == {"turn": "t1"}
    assert (await browser.delete(turn)).json()["turn"] in {"cancelled", "cancelling"}
    assert (await events(browser, turn))[-1]["data"]["status"] == "cancelled"


async def test_refusals_have_a_status(browser: httpx2.AsyncClient) -> None:
    turn = "/sessions/customer/turns/t1"
    assert (await browser.put(turn, json={"text": ""})).status_code == 422
    await browser.put(turn, json={"text": "one"})
    assert (await browser.put(turn, json={"text": "another"})).status_code == 409
    assert (await browser.delete("/sessions/customer/turns/unknown")).status_code == 404
    (told,) = await events(browser, "/sessions/customer/turns/unknown")
    assert told["event"] == "refused"


def test_every_type_of_frame_is_on_the_page() -> None:
    """What a run streams to followers, and what the queue and the follower tell beside it."""
    page = (ROOT / "docs/backend.md").read_text(encoding="utf-8")
    told = {name for row in _ROW.findall(page) for name in row if name}
    assert told == {*SHOWN, "queued", "started", "restarted", "gap", "finished"}
