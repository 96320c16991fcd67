"""Telling a context overflow from other errors, by the words of many providers."""

import csv
import json
import time
from pathlib import Path

import pytest
import republic

from bub_redis.agent.overflow import is_context_overflow, is_empty_refusal
from bub_redis.errors import ContextOverflow, InvalidInput, ModelError

TABLE = Path(__file__).with_name("overflow_texts.tsv")
"""Label, provider and text; `-` where a family has many of them."""


def texts(label: str) -> list[str]:
    with TABLE.open(encoding="utf-8", newline="") as table:
        rows = csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row["text"] for row in rows if row["label"] == label]


@pytest.mark.parametrize("text", texts("overflow"))
def test_an_overflow(text: str) -> None:
    """Cases 47, 196, 197, 198, 199, 202 and 205."""
    assert is_context_overflow(text)


@pytest.mark.parametrize("text", texts("other"))
def test_another_error(text: str) -> None:
    """Cases 164, 192, 193, 194, 195, 197, 198, 199, 202, 203 and 207."""
    assert not is_context_overflow(text)


@pytest.mark.parametrize("shape", ["  {}\n", "400 {}", "Error code: 400 - {}"])
def test_what_stands_around_a_text_changes_nothing(shape: str) -> None:
    for text in (*texts("overflow"), *texts("other")):
        assert is_context_overflow(shape.format(text)) == is_context_overflow(text), text


def test_a_text_in_an_error_object_counts_like_the_text() -> None:
    for text in (*texts("overflow"), *texts("other")):
        body = json.dumps({"error": {"message": text, "type": "invalid_request_error", "param": None}})
        assert is_context_overflow(body) == is_context_overflow(text), text
        assert is_context_overflow(republic.errors.APIStatusError(400, body)) == is_context_overflow(text), text


# Structured codes come first


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "context_length_exceeded", "message": "no"}},
        {"error": {"type": "exceed_context_size_error", "message": "no"}},
        {"type": "error", "error": {"type": "request_too_large", "message": "no"}},
        {"error": {"code": "1261", "message": "no"}},
        {"code": 1261, "msg": "no"},
        {"error": {"code": "model_max_prompt_tokens_exceeded"}},
        {"error": {"metadata": {"raw": '{"error":{"code":"context_length_exceeded"}}'}}},
    ],
)
def test_a_code_decides_whatever_the_words(body: object) -> None:
    """Case 201."""
    assert is_context_overflow(json.dumps(body))
    assert is_context_overflow(f"Error code: 400 - {body}")
    assert is_context_overflow(republic.errors.APIStatusError(400, json.dumps(body)))


def test_numbers_that_are_no_codes_decide_nothing() -> None:
    for text in ("1261 requests failed", "port 413 is closed", "expected 413 tokens", '{"error": {"code": 12610}}'):
        assert not is_context_overflow(text)


@pytest.mark.parametrize("body", ["", "<html><h1>413 Request Entity Too Large</h1>nginx</html>", "rate limit"])
def test_a_request_that_is_too_large_for_a_proxy_is_an_overflow(body: str) -> None:
    """Cases 18 and 206."""
    assert is_context_overflow(republic.errors.APIStatusError(413, body))


# Words over wrappers


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_the_words_count_and_not_the_status_around_them(status: int) -> None:
    """Case 200."""
    long, busy = "prompt is too long: 219898 tokens > 200000 maximum", "Rate limit reached, too many tokens per minute"
    assert is_context_overflow(republic.errors.APIStatusError(status, long))
    assert not is_context_overflow(republic.errors.APIStatusError(status, busy))


@pytest.mark.parametrize(
    "wrapper",
    [
        "litellm.RateLimitError: RateLimitError: OpenAIException - {}",
        "503 litellm.ServiceUnavailableError: litellm.MidStreamFallbackError: {}",
        "429 Too Many Requests: {}",
        '{{"error":{{"type":"rate_limit_error","message":"{}"}}}}',
        "An error occurred (ThrottlingException) when calling the InvokeModel operation: {}",
    ],
)
def test_the_words_count_and_not_the_class_around_them(wrapper: str) -> None:
    """Cases 200 and 202."""
    assert is_context_overflow(wrapper.format("input is too long for requested model"))
    assert not is_context_overflow(wrapper.format("too many tokens, please wait before trying again"))


def test_an_exception_is_judged_by_its_causes() -> None:
    refused = republic.errors.APIStatusError(400, "prompt too long")
    ours = ModelError("openai:m answered HTTP 400; the same request will be refused again")
    assert not is_context_overflow(ours)
    ours.__cause__ = refused
    assert is_context_overflow(ours)
    assert is_context_overflow(ContextOverflow("whatever"))


def test_errors_of_other_clients_are_judged_too() -> None:
    class BadRequestError(Exception):
        code = "context_length_exceeded"
        body: object = None

    class Structured(Exception):
        body: object = {"error": {"message": "input is too long for requested model"}}

    assert is_context_overflow(BadRequestError("400"))
    assert is_context_overflow(Structured("400"))


def test_only_what_a_model_call_raised_is_judged() -> None:
    assert not is_context_overflow(InvalidInput("maximum context length exceeded"))


# What is not the provider's own words


def test_a_link_proves_nothing() -> None:
    """Case 194."""
    for link in (
        "https://docs.example.com/errors#context_length_exceeded",
        "www.example.com/context-window-exceeded",
        "docs.example.com/prompt-too-long",
    ):
        assert not is_context_overflow(f"Bad parameter, see {link}")


def test_a_request_that_an_error_repeats_proves_nothing() -> None:
    body = {
        "detail": [
            {"msg": "Field required", "input": {"content": "why is my prompt too long? context_length_exceeded"}}
        ]
    }
    assert not is_context_overflow(json.dumps(body))


def test_a_refusal_without_a_word_is_known_as_such() -> None:
    """Case 206: the loop takes it for an overflow only if the request was large."""
    for body in ("", "{}", " \n"):
        empty = republic.errors.APIStatusError(400, body)
        assert is_empty_refusal(empty)
        assert not is_context_overflow(empty)
    assert not is_empty_refusal(republic.errors.APIStatusError(400, "no"))
    assert not is_empty_refusal(republic.errors.APIStatusError(500, ""))


# Time


@pytest.mark.parametrize("unit", ["x ", "prompt ", "input 1,", "tokens > ", '{"error":', "超/"])
def test_a_megabyte_takes_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit)) + " no"
        began = time.process_time()
        is_context_overflow(text)
        return time.process_time() - began

    assert seconds(1_000_000) < 8 * 3 * seconds(125_000) + 0.1


def test_the_words_are_found_wherever_they_stand() -> None:
    padding = "lorem ipsum " * 40_000
    assert is_context_overflow(f"{padding} prompt is too long {padding}")
    assert not is_context_overflow(f"{padding} prompt is too long {padding} on tokens per minute")
