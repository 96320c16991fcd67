"""What is logged of a model that fails, and told before it is asked: nothing that a user or a provider said."""

import pytest
from structlog.testing import capture_logs

from bub_redis.agent import Agent
from bub_redis.agent.model import ModelClient
from bub_redis.testing import ScriptedModel, fail, say
from tests.pure.runs import answered


async def test_a_fallback_is_logged_with_the_status_and_without_the_providers_words() -> None:
    agent = Agent(model=ScriptedModel(fail(503, "you said: my secret")), fallbacks=[ScriptedModel(say("Hi."))])
    with capture_logs() as logs:
        assert await answered(agent) == "Hi."
    (log,) = [log for log in logs if log["event"] == "model.fallback"]
    assert (log["http_status"], log["kind"]) == (503, "provider")
    assert "secret" not in str(logs)


@pytest.mark.parametrize(
    ("spec", "variables", "missing"),
    [
        ("openai:gpt-5", {}, "REPUBLIC_OPENAI_API_KEY"),
        ("anthropic:claude", {}, "REPUBLIC_ANTHROPIC_API_KEY"),
        ("openai:gpt-5", {"REPUBLIC_OPENAI_API_KEY": "k"}, None),
        # A server of one's own.
        ("openai:gpt-5", {"REPUBLIC_OPENAI_API_BASE": "http://localhost:8000/v1"}, None),
        ("ollama:llama", {}, None),
    ],
)
def test_the_variable_of_a_missing_key_is_known_before_the_model_is_asked(
    monkeypatch: pytest.MonkeyPatch, spec: str, variables: dict[str, str], missing: str | None
) -> None:
    for name in ("REPUBLIC_OPENAI_API_KEY", "REPUBLIC_OPENAI_API_BASE", "REPUBLIC_ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ModelClient.of(spec).missing_key() == missing


def test_a_scripted_model_needs_no_key() -> None:
    assert ModelClient.of(ScriptedModel(say("Hi."))).missing_key() is None
