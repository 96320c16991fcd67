"""What happens in the demo, from first to last."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from bub_redis.cli.demo import redis_cli, report
from bub_redis.cli.demo.audit import SessionAudit, by_session
from bub_redis.cli.demo.cast import LIVE_LINES, QUICK_LINES, SLOW_LINES, Line
from bub_redis.cli.demo.stage import SHORT_LEASE, DemoFailed, Stage, open_stage
from bub_redis.cli.demo.timeline import Timeline
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal
from bub_redis.cli.rendering import entry_lines
from bub_redis.cli.worker_process import WorkerProcess
from bub_redis.settings import Settings
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import TapeEntry, TapeQuery
from bub_redis.turns import Frame, Turn

MOST_CELLS: Final = 80
LIMIT_S: Final = 40.0
"""How long all of it may take with the scripted model."""
_REAL_MODEL_LIMIT_S = 180.0
_PIECES_BEFORE_KILL = 8
_LIVE_CELLS, _SLOW_CELLS = 18, 48


async def play() -> ExitCode:
    """Play the demo and show it; OK if all that must hold held, else FAILED. Raises what `open_stage` raises."""
    terminal = Terminal(most_cells=MOST_CELLS)
    terminal.print("bub-redis demo", style="bold")
    terminal.print("What a turn did is on its tape once, whole and in order, or not at all, whatever dies.")
    async with open_stage() as stage:
        limit_s = LIMIT_S if stage.settings.model is None else _REAL_MODEL_LIMIT_S
        try:
            async with asyncio.timeout(limit_s):
                rows = await _Play(stage, terminal).perform()
        except TimeoutError:
            raise DemoFailed(f"the demo has not ended within {limit_s:g} s") from None
    _heading(terminal, "What the tapes say")
    report.show(terminal, rows)
    return ExitCode.OK if all(row.holds for row in rows) else ExitCode.FAILED


def _heading(terminal: Terminal, title: str) -> None:
    terminal.print()
    terminal.rule(Text(title, "bold"), align="left", style="dim")


class _Play:
    def __init__(self, stage: Stage, terminal: Terminal) -> None:
        self._stage = stage
        self._client = stage.client
        self._terminal = terminal
        self._turns: list[tuple[Line, Turn]] = []

    async def perform(self) -> list[report.Check]:
        self._introduce()
        await self._enqueue(QUICK_LINES)
        first_text_s = await self._follow_live(LIVE_LINES)
        recovery = await self._kill_a_worker(SLOW_LINES)
        for _, turn in self._turns:
            await self._client.result(turn)
        audits = [
            SessionAudit(lines, await self._entries(session))
            for session, lines in by_session([line for line, _ in self._turns]).items()
        ]
        await self._show_tape(LIVE_LINES[0].session)
        return report.checks(audits, recovery, first_text_s)

    def _introduce(self) -> None:
        stage = self._stage
        where = f"on the socket {stage.socket}" if stage.socket else f"at {stage.client.server.address}"
        kept = "append-only file on, gone when the demo ends" if stage.socket else f"keys: {stage.settings.namespace}:*"
        lease, beat, reconcile = SHORT_LEASE.values()
        usual = {name: field.default for name, field in Settings.model_fields.items()}
        _heading(self._terminal, "The stage")
        self._facts(
            ("server", f"{stage.server_name}, {where}"),
            ("", kept),
            ("workers", ", ".join(map(str, stage.workers))),
            ("lease", f"{lease:g} s, beat {beat:g} s, reconcile {reconcile:g} s: short, to show a recovery soon"),
            ("", f"(the defaults are {usual['lease_s']:g}, {usual['beat_s']:g} and {usual['reconcile_s']:g} s)"),
            *self._model_facts(),
        )

    def _model_facts(self) -> list[tuple[str, str]]:
        model = self._stage.settings.model
        if model is not None:
            return [("model", model)]
        return [
            ("model", "scripted: it plays prepared answers. For a real one set"),
            ("", "BUB_MODEL=provider:model and REPUBLIC_<PROVIDER>_API_KEY"),
        ]

    def _facts(self, *facts: tuple[str, str]) -> None:
        for name, fact in facts:
            self._terminal.print(Text.assemble((f"{name:<9}", "dim"), fact))

    async def _enqueue(self, lines: Sequence[Line]) -> list[Turn]:
        turns = []
        for line in lines:
            turns.append(await self._client.enqueue(line.session, line.prompt, turn_id=line.turn_id))
            self._turns.append((line, turns[-1]))
        return turns

    def _list(self, lines: Sequence[Line]) -> None:
        for line in lines:
            where = f"{line.session:<11}  {line.turn_id}  "
            self._terminal.print(Text.assemble((where, "dim"), line.prompt))
        self._terminal.print()

    async def _follow_live(self, lines: Sequence[Line]) -> float | None:
        """Enqueue the lines and follow the first; the seconds until its first text came."""
        _heading(self._terminal, "Turns of two sessions, one of them followed live")
        began = time.monotonic()
        turn, *_ = await self._enqueue(lines)
        first_text_s = None
        self._list([*QUICK_LINES, *lines])
        timeline = Timeline(self._terminal, began, _LIVE_CELLS)
        async for frame in self._client.follow(turn):
            if frame.type == "text" and first_text_s is None:
                first_text_s = time.monotonic() - began
            await self._show(timeline, turn, frame)
        return first_text_s

    async def _kill_a_worker(self, lines: Sequence[Line]) -> report.Recovery:
        """Enqueue the lines and, while the first says its text, kill the worker that runs it; follow it to its end."""
        _heading(self._terminal, "A third session, whose worker is killed on the way")
        began = time.monotonic()
        turn, *_ = await self._enqueue(lines)
        self._list(lines)
        timeline = Timeline(self._terminal, began, _SLOW_CELLS)
        pieces, killed_at, again_s = 0, None, None
        async for frame in self._client.follow(turn):
            if frame.type == "restarted" and killed_at is not None and again_s is None:
                again_s = time.monotonic() - killed_at
            await self._show(timeline, turn, frame)
            pieces += frame.type == "text"
            if pieces == _PIECES_BEFORE_KILL and killed_at is None:
                runner = await self._runner(turn)
                killed_at = time.monotonic()
                runner.kill()
                timeline.note("kill -9", f"{runner}, in the middle of its text", "bold red")
        return report.Recovery(lines[0], killed_at is not None, again_s)

    async def _show(self, timeline: Timeline, turn: Turn, frame: Frame) -> None:
        match frame.type:
            case "started":
                timeline.note("started", f"on {await self._runner(turn)}")
            case "restarted":
                timeline.note("restarted", f"on {await self._runner(turn)}, from the beginning", "yellow")
            case _:
                timeline.show(frame)

    async def _runner(self, turn: Turn) -> WorkerProcess:
        """The worker that runs the turn now."""
        standing = await self._client.queue.standing(turn)
        return next(worker for worker in self._stage.workers if standing and worker.id == standing.worker)

    async def _entries(self, session: str) -> list[TapeEntry]:
        return await TapeQuery(session, self._client.store).all()

    async def _show_tape(self, session: str) -> None:
        server = self._client.store.server
        key = TapeKeys(self._stage.settings.namespace, session).tape
        connection = redis_cli.connection(server.address)
        _heading(self._terminal, f"The tape of {session}, as redis-cli shows it")
        self._terminal.print(Text(redis_cli.command_line(connection, "XRANGE", key, "-", "+"), "bold"))
        with server.outages():
            page = await server.commands.xrange(key)
        for line in redis_cli.reply_lines(redis_cli.stream_reply(page)):
            self._terminal.print(Text(line, "dim"))
        _heading(self._terminal, "The same tape, as a person reads it")
        for shown in entry_lines(await self._entries(session), self._terminal.width):
            self._terminal.print(shown)
        self._terminal.print()
        self._terminal.print("What comes next on it, as it comes:", style="dim")
        self._terminal.print(
            Text(redis_cli.command_line(connection, "XREAD", "BLOCK", "0", "STREAMS", key, "$"), "bold")
        )
