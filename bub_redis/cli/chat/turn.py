"""One turn of a conversation, shown as it runs."""

import asyncio
import signal
from contextlib import suppress

from bub_redis.cli.chat.house import House
from bub_redis.cli.chat.lines import Left
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, note
from bub_redis.cli.patience import Patience
from bub_redis.cli.turn.follow import FramePrinter
from bub_redis.cli.turn.standstill import standstill_told
from bub_redis.cli.worker_process import WorkerFailed
from bub_redis.errors import Outage
from bub_redis.tasks import ended
from bub_redis.turns import Frame, Turn, TurnClient
from bub_redis.turns.record import new_turn_id

_OUTAGE_LIMIT_S = 30.0
_WATCH_S = 0.3
_MOST_RESTARTS = 5
_LASTING_S = 1.0


class ChatTurn:
    """Sends what was said and follows the turn to its end, through outages; the first Ctrl-C cancels the turn."""

    def __init__(self, house: House, terminal: Terminal, session: str, text: str) -> None:
        self._house = house
        self._session = session
        self._text = text
        self._id = new_turn_id()
        self._printer = FramePrinter(terminal, says_completed=False)
        self._client: TurnClient | None = None
        self._turn: Turn | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._waits: asyncio.TimerHandle | None = None

    async def run(self) -> str:
        """The status of the turn.

        Raises Left at a second Ctrl-C, SIGTERM or a closed terminal; Outage if one lasts longer than 30 s, HostLeft at
        once; InvalidInput, QueueFull; WorkerFailed if chat's own worker cannot be kept alive.
        """
        following = asyncio.ensure_future(self._follow())
        watching = asyncio.ensure_future(self._watch())
        left: list[ExitCode] = []

        def leave(code: ExitCode) -> None:
            left.append(code)
            following.cancel()

        def interrupt() -> None:
            if self._cancelling is not None or self._turn is None:
                leave(ExitCode.INTERRUPTED)
            else:
                self._cancelling = asyncio.ensure_future(self._cancel())

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, interrupt)
        for signum in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, leave, ExitCode.TERMINATED)
        try:
            done, _ = await asyncio.wait({following, watching}, return_when=asyncio.FIRST_COMPLETED)
            if left:
                raise Left(left[0])
            return done.pop().result()
        finally:
            self._printer.end_line()
            for task in (following, watching, self._cancelling):
                if task is not None:
                    with suppress(Outage, WorkerFailed):
                        await ended(task)

    async def _follow(self) -> str:
        """Enqueue and follow. The turn has an id of its own from the start, so that sending it again is safe."""
        patience, after = Patience(_OUTAGE_LIMIT_S), None
        while True:
            try:
                async with TurnClient(self._house.settings) as client:
                    self._client = client
                    self._turn = await client.enqueue(
                        self._session, self._text, turn_id=self._id, model=self._house.model
                    )
                    patience.over()
                    async with standstill_told(client, self._turn, self._printer.end_line, told=self._house.told):
                        async for frame in client.follow(self._turn, after=after):
                            await self._show(frame, client, self._turn)
                            after = frame.id
                            if frame.type == "finished":
                                return str(frame.data["status"])
            except Outage as outage:
                self._printer.end_line()
                self._house.check_host()
                await patience.wait(outage)

    async def _show(self, frame: Frame, client: TurnClient, turn: Turn) -> None:
        if self._waits is not None:
            self._waits.cancel()
        if frame.type == "queued":
            # Only what lasts is worth a line: the turn before may just have shown its end.
            self._waits = asyncio.get_running_loop().call_later(_LASTING_S, self._printer.show, frame)
        else:
            await self._printer.show_whole(frame, client, turn)

    async def _cancel(self) -> None:
        self._printer.end_line()
        if self._client is not None and self._turn is not None:
            try:
                await self._client.cancel(self._turn)
            except Outage as outage:
                note(f"not cancelled: {outage}")

    async def _watch(self) -> str:
        """Start chat's own worker again whenever it ends: its turn goes on. Raises WorkerFailed the sixth time."""
        restarts = 0
        while True:
            await asyncio.sleep(_WATCH_S)
            worker = self._house.worker
            if worker is None or worker.process.poll() is None:
                continue
            if restarts == _MOST_RESTARTS:
                worker.check()
            restarts += 1
            self._printer.end_line()
            note(f"{worker} ended with code {worker.process.returncode}; another one takes the turn over")
            await self._house.start_worker()
