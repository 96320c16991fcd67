"""SAQ: enqueueing."""

from uuid import uuid4

from redis.asyncio import Redis
from saq.queue.redis import RedisQueue
from serve import Act, per_second, serve


async def begin(url: str) -> dict[str, Act]:
    queue = RedisQueue(Redis.from_url(url))
    await queue.connect()

    async def enqueue(count: int, producers: int) -> float:
        return await per_second(lambda _: queue.enqueue("nothing", prompt="Hello", key=uuid4().hex), count, producers)

    return {"enqueue": enqueue}


if __name__ == "__main__":
    serve(begin)
