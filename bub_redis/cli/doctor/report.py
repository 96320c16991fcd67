"""`bub-redis doctor`: everything looked at in order, also where an earlier thing is wrong, and told."""

from collections.abc import AsyncIterator
from dataclasses import asdict

from rich.text import Text

from bub_redis.cli.connect import check_urls
from bub_redis.cli.doctor.checks import (
    Finding,
    arq_findings,
    lease_finding,
    rights_finding,
    server_findings,
    settings_findings,
    work_findings,
)
from bub_redis.cli.embedded import command_settings
from bub_redis.cli.exits import ExitCode
from bub_redis.cli.output import Terminal, one_line, print_json
from bub_redis.errors import BubError, ConfigError
from bub_redis.settings import given_settings
from bub_redis.storage.client import RedisServer
from bub_redis.storage.health import Health, survey
from bub_redis.storage.rights import queue_samples, tape_samples
from bub_redis.turns import TurnClient
from bub_redis.turns.overview import QueueOverview
from bub_redis.turns.workers import Workers

_MARKS = {"ok": ("ok     ", "green"), "warning": ("warning", "yellow"), "problem": ("PROBLEM", "bold red")}


async def examine(*, as_json: bool) -> ExitCode:
    """Print the findings; SERVER if one is a problem."""
    terminal = Terminal()
    sound = True
    async for finding in _findings():
        sound = sound and finding.level != "problem"
        if as_json:
            print_json(asdict(finding))
        else:
            _show(terminal, finding)
    return ExitCode.OK if sound else ExitCode.SERVER


def _show(terminal: Terminal, finding: Finding) -> None:
    mark, style = _MARKS[finding.level]
    terminal.print(Text.assemble((mark, style), f"  {one_line(finding.what):<17}  {one_line(finding.found)}"))
    if finding.remedy:
        terminal.print(Text(f"{'':<9}→ {finding.remedy}", style="yellow"))


async def _findings() -> AsyncIterator[Finding]:
    try:
        settings = command_settings()
        check_urls(settings)
    except ConfigError as error:
        yield Finding("settings", "problem", str(error))
        for finding in settings_findings():
            yield finding
        return
    given = ", ".join(name for name in given_settings() if name != "home") or "none: all are defaults"
    yield Finding("settings", "ok", f"valid; given: {given}")
    for finding in settings_findings():
        yield finding
    async with TurnClient(settings) as client:
        sides = [("queue", client.server, queue_samples(settings.namespace))]
        if client.store.server is client.server:
            sides[0][2].extend(tape_samples(settings.namespace))
        else:
            sides.append(("tape", client.store.server, tape_samples(settings.namespace)))
        healths: dict[str, list[Health]] = {side: [] for side, _, _ in sides}
        for side, server, keys in sides:
            async for found in _side(side, server, keys, healths[side]):
                yield found
        if not all(healths.values()):
            return
        yield lease_finding(settings, [health for found in healths.values() for health in found])
        for finding in arq_findings(healths["queue"][0]):
            yield finding
        for finding in await _work(QueueOverview(client.queue), Workers(client.queue)):
            yield finding


async def _work(overview: QueueOverview, workers: Workers) -> list[Finding]:
    try:
        return list(work_findings(await overview.counts(), await workers.alive(), await overview.turns()))
    except BubError as error:
        return [Finding("workers", "problem", str(error))]


async def _side(side: str, server: RedisServer, keys: list[str], healths: list[Health]) -> AsyncIterator[Finding]:
    try:
        async with server.primaries() as primaries:
            for primary in primaries:
                name = side if primary is server else f"{side} {primary.address.rpartition('/')[2]}"
                await primary.check(force=True)
                healths.append(await survey(primary))
                for finding in server_findings(name, primary.address, healths[-1]):
                    yield finding
                yield await rights_finding(name, primary, keys)
    except BubError as error:
        yield Finding(f"{side} server", "problem", str(error))
