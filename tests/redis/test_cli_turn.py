"""`bub-redis turn`: what a shell user sees and what scripts may rely on."""

import asyncio
import json
import signal
import subprocess

import pytest

from bub_redis.cli.turn.standstill import standstill
from bub_redis.settings import Settings
from bub_redis.storage.keys import TapeKeys
from bub_redis.testing import wait_until
from bub_redis.turns import Turn, TurnClient
from bub_redis.turns.overview import OpenTurn, QueueOverview
from tests.redis.agents import agent
from tests.redis.commands import bub_redis, complaint, environment, invoke, json_lines, start
from tests.redis.frames import shown
from tests.redis.workers import working


@pytest.fixture
def env(settings: Settings) -> dict[str, str]:
    return environment(settings)


def open_turn(turn: Turn, *, place: int, handed_back: str | None) -> OpenTurn:
    return OpenTurn(
        turn,
        status="queued",
        place=place,
        attempt=1,
        crashes=0,
        worker=None,
        enqueued_ms=0,
        started_ms=None,
        due_ms=None,
        cancelled=False,
        overdue=False,
        handed_back=handed_back,
        prompt="hi",
    )


async def enqueue(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(bub_redis, "turn", "enqueue", *arguments, env=env)


async def test_enqueue_says_which_turn_it_is(client: TurnClient, env: dict[str, str]) -> None:
    finished = await enqueue(env, "customer-42", "Where is my order?", "--turn-id", "msg-1")
    assert (finished.returncode, finished.stdout) == (0, "turn msg-1 of session customer-42\n")
    standing = await client.queue.standing(client.turn("customer-42", "msg-1"))
    assert standing is not None and standing.status == "queued"


def test_without_an_id_each_turn_is_a_new_one(env: dict[str, str]) -> None:
    first, second = [json.loads(invoke("turn", "enqueue", "s", "hi", "--json", env=env).stdout) for _ in range(2)]
    assert first["session"] == second["session"] == "s"
    assert first["id"] != second["id"]


def test_the_same_id_again_is_the_same_turn_and_with_another_prompt_a_conflict(env: dict[str, str]) -> None:
    for _ in range(2):
        assert invoke("turn", "enqueue", "s", "hi", "--turn-id", "m1", env=env).returncode == 0
    refused = invoke("turn", "enqueue", "s", "something else", "--turn-id", "m1", env=env)
    assert refused.returncode == 4
    assert "nothing was changed" in complaint(refused)
    (turn,) = json_lines(invoke("turn", "list", "--json", env=env))
    assert turn["prompt"] == "hi"


async def test_follow_shows_text_and_tools_and_how_it_ended(settings: Settings, env: dict[str, str]) -> None:
    async with working(settings, agent):
        finished = await enqueue(env, "s", "order 7", "--turn-id", "m1", "--follow")
    assert finished.returncode == 0
    assert finished.stdout.splitlines() == [
        "turn m1 of session s",
        '→ lookup(order="7")',
        '← {"order": "7", "status": "shipped"}',
        'done: {"order": "7", "status": "shipped"}',
        "completed (entries 3 to 15 of the tape)",
    ]


async def test_follow_shows_a_turn_that_ended_long_ago(
    settings: Settings, client: TurnClient, env: dict[str, str]
) -> None:
    async with working(settings, agent):
        await client.result(await client.enqueue("s", "hello", turn_id="m1"))
    await client.server.commands.delete(f"{settings.namespace}:{{s}}:frames:m1")
    finished = await enqueue(env, "s", "hello", "--turn-id", "m1", "--follow")
    assert finished.returncode == 0
    assert finished.stdout.splitlines()[1:] == ["echo: hello", "completed (entries 3 to 10 of the tape)"]


async def test_follow_of_a_turn_that_fails_exits_with_1(
    settings: Settings, client: TurnClient, env: dict[str, str]
) -> None:
    async with working(settings, agent):
        turn = await client.enqueue("s", "hi", turn_id="m1", model="nobody:nothing")
        followed, result = await asyncio.gather(
            asyncio.to_thread(bub_redis, "turn", "follow", "s", "m1", env=env),
            asyncio.to_thread(bub_redis, "turn", "result", "s", "m1", "--wait", "20", env=env),
        )
        await client.result(turn)
    assert (followed.returncode, followed.stderr) == (1, "")
    assert followed.stdout.splitlines()[-1].startswith("failed: there is no provider 'nobody'")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("failed: there is no provider 'nobody'")


def test_a_model_of_an_unknown_provider_is_refused_before_anything_is_sent(env: dict[str, str]) -> None:
    for model, said in (("nobody:x", "there is no provider 'nobody'"), ("gpt-5", "is no model; write it as provider:")):
        refused = invoke("turn", "enqueue", "s", "hi", "--model", model, env=env)
        assert refused.returncode == 2
        assert said in complaint(refused)
    assert invoke("turn", "list", env=env).stdout == "no turn is open\n"


async def test_follow_goes_on_behind_a_frame(settings: Settings, client: TurnClient, env: dict[str, str]) -> None:
    async with working(settings, agent):
        frames = [frame async for frame in client.follow(await client.enqueue("s", "order 7", turn_id="m1"))]
    place = next(place for place, frame in enumerate(frames) if frame.type == "tool_call")
    after = ["turn", "follow", "s", "m1", "--json", "--after", frames[place].id]
    followed = await asyncio.to_thread(bub_redis, *after, env=env)
    shown = [json.loads(line) for line in followed.stdout.splitlines()]
    assert [frame["id"] for frame in shown] == [frame.id for frame in frames[place + 1 :]]


async def test_the_result_of_a_turn_is_its_answer_and_for_programs_its_receipt(
    settings: Settings, client: TurnClient, env: dict[str, str]
) -> None:
    early = await asyncio.to_thread(bub_redis, "turn", "enqueue", "s", "hello", "--turn-id", "m1", env=env)
    assert early.returncode == 0
    waited = await asyncio.to_thread(bub_redis, "turn", "result", "s", "m1", env=env)
    assert waited.returncode == 1
    assert complaint(waited) == "turn 'm1' has not ended; wait for it with --wait SECONDS"
    waited = await asyncio.to_thread(bub_redis, "turn", "result", "s", "m1", "--wait", "0.1", env=env)
    assert complaint(waited) == "turn 'm1' has not ended within 0.1 s; it goes on"
    async with working(settings, agent):
        told = await asyncio.to_thread(bub_redis, "turn", "result", "s", "m1", "--wait", "20", "--json", env=env)
        result = await client.result(client.turn("s", "m1"))
    assert json.loads(told.stdout) == json.loads(json.dumps(result.as_dict()))
    plain = await asyncio.to_thread(bub_redis, "turn", "result", "s", "m1", env=env)
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "echo: hello\n", "")


async def test_follow_says_that_no_worker_runs(settings: Settings, env: dict[str, str]) -> None:
    with start("turn", "enqueue", "s", "hello", "--follow", env=env) as following:
        assert following.stderr is not None
        said = await asyncio.to_thread(following.stderr.readline)
        assert said.startswith("no worker runs yet, so turns wait: start one with `bub-redis worker")
        async with working(settings, agent):
            shown, more = await asyncio.to_thread(following.communicate)
    assert "echo: hello" in shown
    assert (following.returncode, more) == (0, "")


async def test_follow_says_once_why_a_turn_is_blocked(
    settings: Settings, client: TurnClient, env: dict[str, str]
) -> None:
    await client.server.commands.xadd(TapeKeys(settings.namespace, "s").tape, {"by": "hand"})
    async with working(settings, agent):
        with start("turn", "enqueue", "s", "hello", "--turn-id", "m1", "--follow", env=env) as following:
            assert following.stderr is not None
            said = await asyncio.to_thread(following.stderr.readline)
            assert said.startswith("the turn is blocked: ") and "bub-redis tape " in said

            async def tried_again() -> bool:
                (turn,) = await QueueOverview(client.queue).turns_of("s")
                return turn.attempt > 2

            await wait_until(tried_again, "more attempts", timeout_s=20)
            following.send_signal(signal.SIGINT)
            _, more = await asyncio.to_thread(following.communicate)
    (goes_on,) = more.splitlines()
    assert goes_on.startswith("The turn goes on without you; ")
    assert following.returncode == 130


def test_a_turn_behind_a_blocked_one_names_it() -> None:
    head, own = (Turn("s", "s", name) for name in ("m1", "m2"))
    turns = [
        open_turn(head, place=0, handed_back="the tape refuses; see `bub-redis tape verify s`"),
        open_turn(own, place=1, handed_back=None),
    ]
    said = standstill(own, turns, worker_lives=True)
    assert said.startswith("turn m1 before it ") and said.endswith(": the tape refuses; see `bub-redis tape verify s`")


def test_a_turn_that_was_handed_back_has_its_reason_and_one_that_only_waits_has_none() -> None:
    turn = Turn("s", "s", "m1")
    waits = open_turn(turn, place=0, handed_back=None)
    returned = open_turn(turn, place=0, handed_back="the provider is away")
    said = "the turn was handed back and is tried again: the provider is away"
    assert standstill(turn, [returned], worker_lives=True) == said
    assert standstill(turn, [waits], worker_lives=True) == ""
    assert standstill(turn, [], worker_lives=False) == ""


async def test_ctrl_c_ends_the_line_and_says_how_to_follow_again(settings: Settings, env: dict[str, str]) -> None:
    async with working(settings, agent):
        words = " ".join("abcdefghijklmnopqrstuvwxyz")
        with start("turn", "enqueue", "s", f"slowly {words}", "--turn-id", "m1", "--follow", env=env) as following:
            assert following.stdout is not None
            await asyncio.to_thread(following.stdout.readline)
            assert await asyncio.to_thread(following.stdout.read, 1) == "a"
            following.send_signal(signal.SIGINT)
            shown, said = await asyncio.to_thread(following.communicate)
    assert following.returncode == 130
    assert shown.endswith("\n")
    assert said.startswith("The turn goes on without you; follow it again with `bub-redis turn follow s m1 --after ")


def test_a_waiting_turn_is_cancelled_at_once_and_again(env: dict[str, str]) -> None:
    invoke("turn", "enqueue", "s", "hello", "--turn-id", "m1", env=env)
    for _ in range(2):
        cancelled = invoke("turn", "cancel", "s", "m1", env=env)
        assert cancelled.returncode == 0
        assert cancelled.stdout == "cancelled: it never started, and nothing of it is on the tape\n"
    followed = invoke("turn", "follow", "s", "m1", env=env)
    assert followed.returncode == 1
    assert followed.stdout == "cancelled (it never started: nothing of it is on the tape)\n"


async def test_a_turn_that_was_cancelled_as_it_ran_is_said_to_be_on_the_tape(
    settings: Settings, client: TurnClient, env: dict[str, str]
) -> None:
    async with working(settings, agent):
        turn = await client.enqueue("s", "wait 20", turn_id="m1")
        await shown(client, turn, "tool_call")
        said = [(await asyncio.to_thread(bub_redis, "turn", "cancel", "s", "m1", env=env)).stdout]
        await client.result(turn)

        async def ended() -> bool:
            standing = await client.queue.standing(turn)
            return standing is not None and standing.status == "cancelled"

        await wait_until(ended, "the queue side to know that it ended")
        said.append((await asyncio.to_thread(bub_redis, "turn", "cancel", "s", "m1", env=env)).stdout)
    assert said == [
        "cancelling: it is stopped, and what it did so far is kept on the tape\n",
        "cancelled before: what it did until then is kept on the tape\n",
    ]


async def test_a_turn_that_ended_cannot_be_cancelled(
    settings: Settings, client: TurnClient, env: dict[str, str]
) -> None:
    async with working(settings, agent):
        await client.result(await client.enqueue("s", "hello", turn_id="m1"))
    refused = await asyncio.to_thread(bub_redis, "turn", "cancel", "s", "m1", "--json", env=env)
    assert refused.returncode == 1
    assert json.loads(refused.stdout) == {"turn": "m1", "outcome": "completed"}


def test_a_message_for_an_open_turn_is_taken_in_and_any_other_becomes_a_turn(env: dict[str, str]) -> None:
    invoke("turn", "enqueue", "s", "hello", "--turn-id", "m1", env=env)
    for _ in range(2):
        steered = invoke("turn", "steer", "s", "m1", "and then?", "--steer-id", "m2", env=env)
        assert (steered.returncode, steered.stdout) == (0, "taken into turn m1\n")
    own = json.loads(invoke("turn", "steer", "s", "m0", "what?", "--steer-id", "m3", "--json", env=env).stdout)
    assert own == {"steered": False, "turn": {"session": "s", "tape": "s", "id": "m3"}}
    assert len(invoke("turn", "list", "--json", env=env).stdout.splitlines()) == 2


def test_an_empty_message_is_refused(env: dict[str, str]) -> None:
    refused = invoke("turn", "steer", "s", "m1", " \n", env=env)
    assert refused.returncode == 2
    assert complaint(refused) == "the message is empty; write what the model is to see"


def test_options_state_and_metadata_travel_with_the_turn(settings: Settings, env: dict[str, str]) -> None:
    given = ["--options", '{"temperature": 0}', "--state", '{"a": [1]}', "--metadata", '{"by": "me"}']
    assert invoke("turn", "enqueue", "s", "hello", "--turn-id", "m1", *given, env=env).returncode == 0
    assert invoke("turn", "enqueue", "s", "hello", "--turn-id", "m1", *given, env=env).returncode == 0
    assert invoke("turn", "enqueue", "s", "hello", "--turn-id", "m1", env=env).returncode == 4


async def test_a_long_text_comes_on_stdin(client: TurnClient, env: dict[str, str]) -> None:
    text = "a long text 长 " * 20_000
    sent = await asyncio.to_thread(bub_redis, "turn", "enqueue", "s", "-", "--turn-id", "m1", env=env, stdin=text)
    assert sent.returncode == 0
    await client.enqueue("s", text, turn_id="m1")


async def test_follow_as_json_is_the_turn_and_a_line_per_frame(settings: Settings, env: dict[str, str]) -> None:
    async with working(settings, agent):
        finished = await enqueue(env, "s", "hello", "--turn-id", "m1", "--follow", "--json")
    turn, *frames = [json.loads(line) for line in finished.stdout.splitlines()]
    assert turn == {"session": "s", "tape": "s", "id": "m1"}
    assert "".join(frame["data"]["delta"] for frame in frames if frame["type"] == "text") == "echo: hello"
    assert (frames[-1]["type"], frames[-1]["data"]["status"]) == ("finished", "completed")


@pytest.mark.parametrize(
    ("session", "text", "cause"),
    [("s", " \n", "the prompt is empty"), ("", "hi", "a session id"), ("a\tb", "hi", "a control character")],
)
def test_what_can_never_work_is_wrong_usage(env: dict[str, str], session: str, text: str, cause: str) -> None:
    refused = invoke("turn", "enqueue", session, text, env=env)
    assert refused.returncode == 2
    assert cause in complaint(refused)


def test_a_missing_argument_is_named_with_the_help_to_read(env: dict[str, str]) -> None:
    refused = invoke("turn", "enqueue", "s", env=env)
    assert refused.returncode == 2
    assert complaint(refused) == "Missing argument 'TEXT'; see `bub-redis turn enqueue --help`"


async def test_a_reader_that_leaves_ends_the_command_quietly(settings: Settings, env: dict[str, str]) -> None:
    async with working(settings, agent):
        with start("turn", "enqueue", "s", "slowly a b c d e f g", "--follow", env=env) as following:
            assert following.stdout is not None and following.stderr is not None
            await asyncio.to_thread(following.stdout.readline)
            following.stdout.close()
            assert await asyncio.to_thread(following.stderr.read) == ""
        assert following.returncode == 141
