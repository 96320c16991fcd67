"""RedisSession of the OpenAI Agents SDK: a conversation, and the reading of its last items."""

from typing import Any

from agents.extensions.memory import RedisSession
from serve import Act, seconds, serve


async def begin(url: str) -> dict[str, Act]:
    session = RedisSession.from_url("customer-42", url=url)

    async def fill(items: list[Any]) -> int:
        await session.add_items(items)
        return len(items)

    async def read(items: int, times: int) -> list[float]:
        found = [await seconds(session.get_items(items)) for _ in range(times)]
        return found

    return {"fill": fill, "read": read}


if __name__ == "__main__":
    serve(begin)
