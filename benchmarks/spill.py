"""Spill: a result of 50 MB written and read, in a process of its own whose memory is watched."""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from benchmarks import material
from benchmarks.measure import series
from benchmarks.reference import output_of
from benchmarks.rows import Row, Skipped
from benchmarks.stage import ROOT, Stage
from bub_redis import RedisTapeStore, SpillStore, Tape
from bub_redis.tape.query import TapeQuery
from bub_redis.testing.tied import tied_command

_BYTES = 50_000_000


async def spilling(stage: Stage) -> AsyncGenerator[Row | Skipped, None]:
    """Write and read rate, and peak memory over the size of the result."""
    found = []
    with stage.server() as server:
        for number in range(max(1, stage.sizes.rounds // 2)):
            process = await asyncio.create_subprocess_exec(
                *tied_command([sys.executable, "-m", "benchmarks.spill", server.url, str(number)]),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            found.append(json.loads(await output_of(process)))
    megabytes = _BYTES / 1e6
    for what, key in (("write", "write_s"), ("read", "read_s")):
        speed = series([megabytes / run[key] for run in found])
        yield Row(
            f"spill {what} of {megabytes:.0f} MB",
            f"{speed.median:,.0f} MB/s ({speed.low:,.0f}–{speed.high:,.0f})",
            target=">= 100 MB/s",
            met=speed.median >= 100,
        )
    for what, key in (("write", "write_peak"), ("read", "read_peak")):
        peak = series([run[key] / _BYTES for run in found])
        yield Row(
            f"peak memory of a spill's {what}, over its size, the result itself included",
            f"{peak.high:.2f} ×",
            target="<= 4.00 ×",
            met=peak.high <= 4,
        )
    grown = max(run["main_bytes"] for run in found)
    yield Row("what the main tape grows by", f"{grown:,} bytes", target="< 2,000 bytes", met=grown < 2000)


async def _once(url: str, tape_name: str) -> dict[str, float]:
    async with RedisTapeStore.from_url(url) as store:
        spills = SpillStore()
        tape = Tape(tape_name, store, sidecars=(spills,))
        await tape.ensure_bootstrap_anchor()
        before = len(await store.fetch_all(TapeQuery(tape_name, store)))
        base = _peak_bytes()
        text = (material.TEXT * (_BYTES // len(material.TEXT) + 1)).encode()[:_BYTES].decode(errors="ignore")
        async with tape.fork_tape() as fork:
            began = time.perf_counter()
            await spills.spill(fork, text, tool="report", run_id="1")
        write_s, write_peak = time.perf_counter() - began, _peak_bytes() - base
        del text
        entries = (await store.fetch_all(TapeQuery(tape_name, store)))[before:]
        (written,) = (entry for entry in entries if entry.payload.get("name") == "spill.write")
        handle = written.payload["data"]["handle"]
        base = _peak_bytes()
        began = time.perf_counter()
        parts = [part async for part in spills.content(tape, handle)]
        whole = "".join(parts)
        read_s = time.perf_counter() - began
        assert len(whole.encode()) > _BYTES - 4
        return {
            "write_s": write_s,
            "read_s": read_s,
            "write_peak": write_peak,
            "read_peak": _peak_bytes() - base,
            "main_bytes": sum(entry.encode().size_bytes for entry in entries),
        }


def _peak_bytes() -> int:
    """The largest memory of this process since this was asked the last time."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_once(sys.argv[1], f"customer-{sys.argv[2]}"))))
