"""`bub-redis tape`: for people a line per entry, for programs all of it."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from bub_redis.errors import Fenced
from bub_redis.settings import Settings
from bub_redis.storage.keys import TapeKeys
from bub_redis.tape import Tape, TapeEntry
from bub_redis.tape.fork import Fork
from bub_redis.testing import EmbeddedServer, wait_until
from bub_redis.turns import TurnClient
from tests.redis.agents import agent
from tests.redis.commands import bub_redis, complaint, environment, invoke, start
from tests.redis.frames import shown
from tests.redis.workers import working

Answer = TypeVar("Answer")
Work = Callable[[Tape, TurnClient], Awaitable[Answer]]


@pytest.fixture
def cli(settings: Settings) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *arguments: invoke("tape", *arguments, env=environment(settings))


Cli = Callable[..., subprocess.CompletedProcess[str]]


def on_tape(settings: Settings, work: Work[Answer], session: str = "customer-42") -> Answer:
    """Let `work` do something to a session's tape."""

    async def connected() -> Answer:
        async with TurnClient(settings) as client:
            return await work(Tape(session, client.store), client)

    return asyncio.run(connected())


def said(text: str, role: str = "user") -> TapeEntry:
    return TapeEntry.message({"role": role, "content": text})


def append(settings: Settings, *entries: TapeEntry, session: str = "customer-42") -> list[TapeEntry]:
    return on_tape(settings, lambda tape, _: tape.append(*entries), session)


def merge(settings: Settings, *texts: str) -> None:
    """Put messages on the tape with a receipt."""

    async def work(tape: Tape, _: TurnClient) -> None:
        async with tape.fork_tape() as fork:
            await fork.append(*map(said, texts))

    on_tape(settings, work)


def test_a_line_tells_number_time_kind_and_what_it_says(settings: Settings, cli: Cli) -> None:
    dated = TapeEntry(0, "message", {"role": "user", "content": "Hi\nthere"}, date="2026-01-02T03:04:05.678Z")
    append(settings, TapeEntry.anchor("session/start", {"owner": "human"}), dated)
    finished = cli("show", "customer-42")
    assert finished.returncode == 0
    lines = finished.stdout.splitlines()
    assert lines[-2:] == ["2026-01-02 UTC", "2  03:04:05.678  message      user: Hi there"]
    assert lines[1].endswith("anchor       session/start owner=human")


def test_in_a_pipe_nothing_is_cut(settings: Settings, cli: Cli) -> None:
    text = "long " * 200 + "end"
    append(settings, said(text))
    assert cli("show", "customer-42").stdout.endswith(f"user: {text}\n")


def test_json_is_every_entry_whole(settings: Settings, cli: Cli) -> None:
    written = append(
        settings,
        TapeEntry.message({"role": "user", "content": "half \ud83d and 🙂"}, note=[]),
        TapeEntry.anchor("", {"n": 2**60}),
    )
    lines = cli("show", "customer-42", "--json").stdout.splitlines()
    assert [TapeEntry(**json.loads(line)) for line in lines] == written


def test_what_was_said_cannot_drive_the_terminal(settings: Settings, cli: Cli) -> None:
    append(settings, said("\x1b[2Jgone\x07 \x9b0m \ud83d"))
    assert cli("show", "customer-42").stdout.endswith("user: \ufffd[2Jgone\ufffd \ufffd0m \ufffd\n")


def test_only_what_stands_behind_an_anchor_and_only_the_last_of_it(settings: Settings, cli: Cli) -> None:
    append(settings, said("a"), TapeEntry.anchor("billing"), said("b"), said("c"), said("d"))

    def texts(*options: str) -> list[str]:
        lines = cli("show", "customer-42", "--json", *options).stdout.splitlines()
        return [json.loads(line)["payload"].get("content") for line in lines]

    assert texts("--after", "billing") == ["b", "c", "d"]
    assert texts("--after", "billing", "--last", "2") == ["c", "d"]
    assert texts("--last", "1") == ["d"]


@pytest.mark.parametrize("command", ["show", "tail", "info", "anchors", "verify", "repair", "search x", "handoff x"])
def test_an_unknown_session_is_not_found_and_not_made(settings: Settings, cli: Cli, command: str) -> None:
    name, *rest = command.split()
    refused = cli(name, "nobody", *rest)
    assert refused.returncode == 3
    assert f"session 'nobody' has no tape in namespace {settings.namespace!r}" in complaint(refused)
    assert cli("ls").stdout == "there is no tape yet\n"


def test_an_unknown_anchor_is_not_found(settings: Settings, cli: Cli) -> None:
    append(settings, said("a"))
    refused = cli("show", "customer-42", "--after", "nowhere")
    assert refused.returncode == 3
    assert complaint(refused) == "tape 'customer-42' has no anchor 'nowhere'"


def test_the_tape_of_a_workspace_is_found_by_its_session(settings: Settings) -> None:
    env = environment(settings, BUB_WORKSPACE="/srv/shop")
    sent = json.loads(invoke("turn", "enqueue", "customer-42", "hi", "--json", env=env).stdout)
    append(settings, TapeEntry.event("mark"), session=sent["tape"])
    assert invoke("tape", "show", "customer-42", env=env).stdout.rstrip().endswith("event        mark")


def test_ls_shows_the_tape_that_changed_last_first(settings: Settings, cli: Cli) -> None:
    append(settings, said("a"), session="old")
    append(settings, said("a"), said("b"), session="顾客")
    listed = [json.loads(line) for line in cli("ls", "--json").stdout.splitlines()]
    assert [(tape["tape"], tape["entries"]) for tape in listed] == [("顾客", 2), ("old", 1)]
    assert [line.split()[:2] for line in cli("ls").stdout.splitlines()[1:]] == [["顾客", "2"], ["old", "1"]]


def test_columns_are_aligned_by_cells(settings: Settings, cli: Cli) -> None:
    append(settings, said("a"), session="顾客")
    assert cli("ls").stdout.splitlines() == ["TAPE  ENTRIES  LAST COMMIT", "顾客  1        0 s ago"]


def test_info_is_the_tape_in_numbers(settings: Settings, cli: Cli) -> None:
    merge(settings, "a", "b")
    told = json.loads(cli("info", "customer-42", "--json").stdout)
    assert (told["entries"], told["anchors"], told["last_anchor"], told["generation"]) == (3, 0, None, 0)
    shown = dict(line.split("  ", 1) for line in cli("info", "customer-42").stdout.splitlines())
    assert shown["its digest"].strip() == told["digest"]


def test_a_handoff_writes_an_anchor_of_any_name(settings: Settings, cli: Cli) -> None:
    """Case 64: an anchor's name is any text."""
    append(settings, said("a"))
    for name in ("billing", "账单 {}/\t\"'"):
        assert cli("handoff", "customer-42", name, "--state", '{"n": [1]}').returncode == 0
        append(settings, said(f"behind {name}"))
        shown = [json.loads(line) for line in cli("show", "customer-42", "--after", name, "--json").stdout.splitlines()]
        assert [entry["kind"] for entry in shown] == ["event", "message"]
    found = [json.loads(line) for line in cli("anchors", "customer-42", "--json").stdout.splitlines()]
    assert found == [{"name": "billing", "state": {"n": [1]}}, {"name": "账单 {}/\t\"'", "state": {"n": [1]}}]
    assert len(cli("anchors", "customer-42", "--limit", "1").stdout.splitlines()) == 2
    assert cli("anchors", "customer-42", "--limit", "0").stdout == "no anchor is shown: --limit is 0\n"


@pytest.mark.parametrize("name", ["", " \t"])
def test_a_blank_name_is_no_name_for_a_handoff(settings: Settings, cli: Cli, name: str) -> None:
    append(settings, said("a"))
    refused = cli("handoff", "customer-42", name)
    assert refused.returncode == 2
    assert complaint(refused).startswith("the anchor's name is empty; ")


def test_an_anchor_without_a_name_is_shown_and_found(settings: Settings, cli: Cli) -> None:
    """Case 64: libraries may write one."""
    append(settings, TapeEntry.anchor(""), said("behind"))
    assert cli("anchors", "customer-42").stdout.splitlines()[1] == "''"
    assert cli("show", "customer-42", "--after", "").stdout.rstrip().endswith("user: behind")


@pytest.mark.parametrize("state", ["{", "[1]", "1", '"x"', "null", "NaN", '{"a": NaN}', "[" * 5000])
def test_state_that_is_no_json_object_writes_nothing(settings: Settings, cli: Cli, state: str) -> None:
    append(settings, said("a"))
    refused = cli("handoff", "customer-42", "x", "--state", state)
    assert refused.returncode == 2
    assert complaint(refused)
    assert cli("anchors", "customer-42").stdout == "this tape has no anchor\n"


def test_search_finds_the_newest_first_and_nothing_is_not_found(settings: Settings, cli: Cli) -> None:
    append(settings, said("Where is my PARCEL?"), said("订单 in the café"), said("parcel again"))
    lines = cli("search", "customer-42", "parcel").stdout.splitlines()
    assert [line.split("user: ")[-1] for line in lines[1:]] == ["parcel again", "Where is my PARCEL?"]
    assert cli("search", "customer-42", "cafe\u0301", "--json").stdout.count("\n") == 1
    nothing = cli("search", "customer-42", "nowhere")
    assert (nothing.returncode, nothing.stdout) == (3, "nothing on the tape holds 'nowhere'\n")


def test_what_a_fenced_worker_did_is_shown_as_parked(settings: Settings, cli: Cli) -> None:
    """Case 183: it is on no tape, and a person can look at it."""

    async def refused(tape: Tape, client: TurnClient) -> None:
        async with client.store.session(tape.name, "run-1", 1.0) as grant:
            fork = await Fork.open(client.store, grant)
            await fork.append(tape.name, said("too late"))
        async with client.store.session(tape.name, "run-2", 1.0):
            pass
        with pytest.raises(Fenced):
            await fork.merge("completed")

    assert cli("parked", "customer-42").stdout == "nothing of session 'customer-42' is parked\n"
    on_tape(settings, refused)
    lines = cli("parked", "customer-42").stdout.splitlines()
    assert lines[0] == "turn run-1, parked 0 s ago: 1 entries"
    assert lines[2].endswith("user: too late")
    (overlay,) = map(json.loads, cli("parked", "customer-42", "--json").stdout.splitlines())
    assert (overlay["turn"], overlay["dropped"]) == ("run-1", 0)


def test_an_intact_tape_is_verified_with_the_digest_of_its_last_receipt(settings: Settings, cli: Cli) -> None:
    merge(settings, "a")
    merge(settings, "b", "c")
    digest = json.loads(cli("info", "customer-42", "--json").stdout)["digest"]
    verified = cli("verify", "customer-42")
    assert verified.returncode == 0
    assert verified.stdout.splitlines()[0] == "verdict   intact"
    assert verified.stdout.splitlines()[-1] == f"digest    {digest}"


def test_an_edited_export_is_found_out(settings: Settings, cli: Cli, tmp_path: Path) -> None:
    merge(settings, "a")
    merge(settings, "b")
    export = tmp_path / "export.jsonl"
    whole = cli("show", "customer-42", "--json").stdout
    export.write_text(whole, encoding="utf-8")
    assert cli("verify", "--file", str(export)).returncode == 0
    export.write_text(whole.replace('"b"', '"B"'), encoding="utf-8")
    edited = cli("verify", "--file", str(export))
    assert edited.returncode == 4
    assert edited.stdout.startswith(
        "receipt 4 does not match what stands before it: something was edited or is missing\n"
    )
    export.write_text("".join(whole.splitlines(keepends=True)[1:]) + "not an entry\n", encoding="utf-8")
    found = json.loads(cli("verify", "--file", str(export), "--json").stdout)
    assert (found["misplaced"], found["unreadable"]) == ([2], 1)


def test_a_file_without_an_entry_proves_nothing(cli: Cli, tmp_path: Path) -> None:
    """What a backup that failed leaves."""
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n", encoding="utf-8")
    refused = cli("verify", "--file", str(empty))
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "nothing to prove" in refused.stderr


def test_an_entry_by_hand_and_a_lost_end_are_found_out(settings: Settings, cli: Cli) -> None:
    merge(settings, "a")

    async def tamper(tape: Tape, client: TurnClient) -> None:
        keys = TapeKeys(settings.namespace, tape.name)
        await client.server.commands.xadd(keys.tape, {"by": "hand"})
        receipt = f"{settings.namespace}:receipt:customer-42"
        await client.server.commands.execute_command("HSET", receipt, "id", "9999999999999-9", "digest", "x")

    on_tape(settings, tamper)
    verified = cli("verify", "customer-42")
    assert verified.returncode == 4
    assert "1 entry was not written by bub-redis, removed, or cannot be read" in verified.stdout
    assert "the end is lost: receipt 9999999999999-9 was given and is not there any more" in verified.stdout


def test_a_key_of_another_type_is_named(settings: Settings, cli: Cli) -> None:
    append(settings, said("a"))
    stream = TapeKeys(settings.namespace, "customer-42").tape
    on_tape(settings, lambda _, client: client.server.commands.execute_command("SET", stream, "by hand"))
    refused = cli("verify", "customer-42")
    assert refused.returncode == 4
    assert "`bub-redis tape repair customer-42`" in complaint(refused)
    assert f"{stream} is of another type" in cli("repair", "customer-42").stdout


def test_a_blocked_tape_is_surveyed_then_repaired(settings: Settings, cli: Cli) -> None:
    append(settings, TapeEntry.anchor("begin"))
    keys = TapeKeys(settings.namespace, "customer-42")

    async def damage(_: Tape, client: TurnClient) -> None:
        await client.server.commands.xadd(keys.tape, {"by": "hand"})
        await client.server.commands.set(keys.anchors, "by hand")

    on_tape(settings, damage)
    surveyed = cli("repair", "customer-42")
    assert surveyed.returncode == 4
    assert surveyed.stdout.splitlines() == [
        f"customer-42: {keys.anchors} is of another type; it will be renamed to {keys.anchors}:damaged:<ms>",
        f"customer-42: 1 entry is not of bub-redis; it will be moved to {keys.damaged}",
        "customer-42: the index of anchors does not fit the entries; it will be made anew from them",
        "nothing is changed yet; repair it with `bub-redis tape repair customer-42 --yes`",
    ]
    assert cli("handoff", "customer-42", "x").returncode == 5
    repaired = cli("repair", "customer-42", "--yes", "--json")
    assert repaired.returncode == 0
    (found,) = json.loads(repaired.stdout)["tapes"]
    assert (found["foreign"], found["rebuilt"], found["renamed"]) == (1, ["anchors"], [keys.anchors])
    assert cli("repair", "customer-42").stdout == "there is nothing to repair on the tape of customer-42\n"
    assert cli("handoff", "customer-42", "x").returncode == 0
    assert cli("verify", "customer-42").returncode == 0


def test_a_repair_tells_what_it_renamed_a_key_to(settings: Settings, cli: Cli) -> None:
    append(settings, TapeEntry.anchor("begin"))
    keys = TapeKeys(settings.namespace, "customer-42")

    async def damage(_: Tape, client: TurnClient) -> None:
        await client.server.commands.set(keys.anchors, "by hand")
        await client.server.commands.xadd(keys.tape, {"by": "hand"})
        await client.server.commands.xadd(keys.tape, {"by": "hand"})

    on_tape(settings, damage)
    renamed, moved, *_ = cli("repair", "customer-42", "--yes").stdout.splitlines()
    aside = renamed.rpartition(" it was renamed to ")[2]
    assert on_tape(settings, lambda _, client: client.server.commands.get(aside)) == b"by hand"
    assert moved == f"customer-42: 2 entries are not of bub-redis; they were moved to {keys.damaged}"


def test_a_tape_whose_state_was_lost_is_found_all_the_same(settings: Settings, cli: Cli) -> None:
    merge(settings, "a")
    state = TapeKeys(settings.namespace, "customer-42").state
    on_tape(settings, lambda _, client: client.server.commands.execute_command("DEL", state))
    for command in (["verify", "customer-42"], ["show", "customer-42"], ["reset", "customer-42", "--yes"]):
        refused = cli(*command)
        assert refused.returncode == 4
        assert "`bub-redis tape repair customer-42`" in complaint(refused)
    assert "customer-42  ?" in cli("ls").stdout
    assert cli("repair", "customer-42", "--yes").stdout.splitlines() == [
        "customer-42: where the tape stands does not fit the entries; it was made anew from them",
        "the tape of customer-42 can be written again; turns that wait for it go on within half a minute",
    ]
    assert cli("verify", "customer-42").returncode == 0


def test_a_lost_index_is_found_by_verify(settings: Settings, cli: Cli) -> None:
    """Nothing else would tell: turns are committed as before."""
    append(settings, TapeEntry.anchor("begin"))
    anchors = TapeKeys(settings.namespace, "customer-42").anchors
    on_tape(settings, lambda _, client: client.server.commands.execute_command("DEL", anchors))
    verified = cli("verify", "customer-42")
    assert verified.returncode == 4
    assert "anchors: does not fit the entries; see `bub-redis tape repair`" in verified.stdout
    assert json.loads(cli("verify", "customer-42", "--json").stdout)["unfit"] == ["anchors"]


def test_reset_and_delete_want_to_be_meant(settings: Settings, cli: Cli) -> None:
    merge(settings, "a")
    for command in ("reset", "delete"):
        refused = cli(command, "customer-42")
        assert refused.returncode == 2
        assert complaint(refused) == (
            "this drops 2 entries of tape 'customer-42' for good; if that is meant, add --yes"
        )
    assert cli("reset", "customer-42", "--yes").stdout == "the tape of customer-42 begins anew\n"
    assert json.loads(cli("info", "customer-42", "--json").stdout)["last_anchor"] == "session/start"
    assert cli("delete", "customer-42", "--yes").stdout == "the tape of customer-42 is gone\n"
    assert cli("show", "customer-42").returncode == 3


def test_a_session_with_an_open_turn_is_neither_reset_nor_deleted(settings: Settings, cli: Cli) -> None:
    merge(settings, "a")
    on_tape(settings, lambda _, client: client.enqueue("customer-42", "hi", turn_id="m1"))
    refused = cli("delete", "customer-42", "--yes")
    assert refused.returncode == 5
    assert complaint(refused) == (
        "turn 'm1' of session 'customer-42' has not ended: wait for it with "
        "`bub-redis turn result customer-42 m1 --wait 60` or `bub-redis turn cancel customer-42 m1`"
    )
    assert json.loads(cli("info", "customer-42", "--json").stdout)["entries"] == 2


async def test_a_refused_reset_names_what_can_be_done(settings: Settings, client: TurnClient) -> None:
    reset = ("tape", "reset", "s", "--yes")
    async with working(settings, agent):
        turn = await client.enqueue("s", "wait 20", turn_id="m1")
        await shown(client, turn, "tool_call")
        refused = await asyncio.to_thread(bub_redis, *reset, env=environment(settings))
        assert refused.returncode == 5
        assert "`bub-redis turn cancel s m1` or `bub-redis tape reset s --yes --force`" in complaint(refused)
        forced = await asyncio.to_thread(bub_redis, *reset, "--force", env=environment(settings))
        assert forced.returncode == 0


@pytest.mark.parametrize("arguments", [(), ("s", "--file", "x")])
def test_verify_wants_one_thing_to_verify(cli: Cli, arguments: tuple[str, ...]) -> None:
    refused = cli("verify", *arguments)
    assert refused.returncode == 2
    assert complaint(refused) == "name either a session or --file FILE"


def test_tail_shows_the_end(settings: Settings, cli: Cli) -> None:
    append(settings, *(said(f"m{n}") for n in range(12)))
    assert [line[-3:].strip() for line in cli("tail", "customer-42", "-n", "2").stdout.splitlines()[1:]] == [
        "m10",
        "m11",
    ]
    assert len(cli("tail", "customer-42").stdout.splitlines()) == 11


async def test_following_survives_a_killed_server_and_misses_nothing(tmp_path: Path) -> None:
    with EmbeddedServer(data_dir=tmp_path / "data") as own:
        async with TurnClient.from_url(own.url) as client:
            tape = Tape("s", client.store)
            await tape.append(said("one"))
            env = environment(BUB_REDIS_URL=own.url)
            with start("tape", "tail", "-f", "s", "--json", env=env) as tailing:
                assert tailing.stdout is not None and tailing.stderr is not None

                async def shown() -> str:
                    assert tailing.stdout is not None
                    line = await asyncio.to_thread(tailing.stdout.readline)
                    return str(json.loads(line)["payload"]["content"])

                assert await shown() == "one"
                await tape.append(said("two"))
                assert await shown() == "two"
                for text in ("three", "four"):
                    own.kill()
                    waiting = await asyncio.to_thread(tailing.stderr.readline)
                    assert waiting.startswith("waiting for the server: no answer from unix://")
                    own.start()
                    await wait_until(lambda: client.store.head("s"), "the server to serve again")
                    await tape.append(said(text))
                    assert await shown() == text
                tailing.terminate()
                assert await asyncio.to_thread(tailing.stderr.read) == ""
            assert tailing.returncode == 143


async def test_following_begins_with_a_session_that_is_not_there_yet(settings: Settings, client: TurnClient) -> None:
    with start("tape", "tail", "-f", "new", env=environment(settings)) as tailing:
        assert tailing.stdout is not None

        async def listens() -> bool:
            return any("xread" in each["cmd"] for each in await client.server.commands.client_list())

        await wait_until(listens, "the tail to listen")
        await Tape("new", client.store).append(said("first"))
        assert "UTC" in await asyncio.to_thread(tailing.stdout.readline)
        assert (await asyncio.to_thread(tailing.stdout.readline)).endswith("user: first\n")
        tailing.terminate()
