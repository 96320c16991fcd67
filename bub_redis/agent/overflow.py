"""Telling a context overflow from every other way in which a model call fails.

Providers have no common code for it, so their words are read, in this order: structured codes; sentences that compare
the request with the model's context in numbers; texts that are *not* overflow (rates, quotas, output parameters); texts
that are. A wrong yes costs a conversation its history, a wrong no costs a turn. The families come from real errors
(cases 192 to 208).

Every pattern begins with a literal and has no unbounded repetition, so that the time is linear in the text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bub_redis.errors import BubError, ContextOverflow, ModelError

_DECODER = json.JSONDecoder()
_MAX_CAUSES = 5
_MAX_NESTING = 6

_CODES = (
    "context_length_exceeded",
    "context_window_exceeded",
    "contextwindowexceeded",
    "exceed_context_size",
    "model_max_prompt_tokens_exceeded",
    "prompt_too_long",
    "prompttoolong",
    "request_too_large",
    "tokens_limit_reached",
)
"""Codes that mean nothing else, wherever they stand (case 201)."""

_NUMBERED_CODE = re.compile(r"\bcode[ :=]{1,4}1261\b")
"""Zhipu's."""
_TOO_LARGE_STATUS = re.compile(
    r"(?:^|\bhttp(?:/[\d.]{1,3})? |\bstatus(?: code)?[ :=]{1,3}|\b(?:error )?code[ :=]{1,3})413\b(?! tokens)"
)
"""HTTP 413: a proxy, or the provider, takes no request of that size (cases 18 and 206)."""

_TOLD_KEYS = frozenset(
    "error errors message msg detail details code type status reason title description raw metadata cause innererror"
    " error_code error_msg error_message body response".split()
)
"""Where error objects keep what they say. Other keys repeat the request, whose words prove nothing."""

# What is left of a text for the patterns below: words in lower case with single spaces between them, without links,
# quotes and the names of error classes, and with spaces for _ and -.

_SEPARATORS = re.compile(r"[\s\"'`\\\u2018\u2019\u201c\u201d]+")
_ESCAPE = re.compile(r"\\u00([0-7][0-9a-f])")
_LINK = re.compile(r"://|^\W{0,3}www\.|\.[a-z]{2,10}/")
_WRAPPER_PARTS = ("rate_limit", "ratelimit", "exceeded", "exhausted", "unavailable", "too_many", "throttl", "error")
_PUNCTUATION = ".,:;!?()[]{}*|"
_REASON_PHRASE = re.compile(r"\b429 (?:client : |: )?too many requests\b")

_NUMBER = r"\d[\d,.]{0,14}+"
_REQUEST = r"(?:prompt|input|request|message|conversation|context|history|sequence|inputs|messages|chat)"
_OUTPUT = (
    r"(?:max (?:completion |output |new |generation )?tokens|maxoutputtokens|maxtokens|max length tokens"
    r"|num predict|n predict|budget tokens)"
)

_DECISIVE = re.compile(
    "|".join(
        (
            rf"prompt is too long: {_NUMBER} tokens > {_NUMBER} maximum",
            rf"maximum context length is {_NUMBER} tokens?[.,;]? (?:however|but)\b",
            rf"input length and max tokens exceed context limit: {_NUMBER} \+ {_NUMBER} >",
        )
    )
)
"""No rate limit says so: these hold even where the text around them talks of one (case 200)."""

_OTHER = re.compile(
    "|".join(
        (
            # Rates and quotas. A shorter context would go through now, and a moment's patience would too.
            r"rate[ ]?limit",
            r"[ (](?:tpm|rpm|tpd|rpd|itpm|otpm)\b",
            r" per (?:second|minute|min|hour|day|week|month)\b",
            r"/ ?(?:second|minute|min|hour|day|month)\b",
            r"(?:daily|hourly|weekly|monthly)\b",
            r"(?:this|the current|last) (?:minute|hour|week|month)\b",
            r"quota",
            r"throttl",
            r"too many requests\b",
            r"please (?:wait|slow down)\b",
            r"(?:retry|try again) (?:after|in) \d",
            r"extra usage\b",
            r"token usage\b",
            r"(?:usage|spend(?:ing)?|credit|billing|subscription|balance) limit",
            r" api (?:key|token)s?\b",
            r"每分钟|每天|每日|额度|速率|频率|余额",
            # The answer's length, which the caller set too large. Beside the input's it is a sum, and an overflow.
            rf"(?<!and )(?<!\+ ){_OUTPUT}(?: ?[:=(]? ?{_NUMBER}\)?)?(?: value| parameter| specified in the request)?"
            r"[^.;]{0,60}?(?:must|should|cannot|can not|may not|at most|too large|too high|too big|supported range"
            r"|exceed|invalid|not valid|above|larger|greater|>)",
            rf"(?:range of|invalid|value (?:of|for)) {_OUTPUT}",
            r"maximum tokens (?:you )?requested",
            r"(?:output|completion|response|generation|generated)[ ]?tokens? (?:limit|length)",
            r"maximum (?:allowed )?(?:number of )?(?:output|completion) tokens? (?:for|is|of|allowed)",
            r"(?:must|should|has to|needs to) be (?:greater|larger|more|at least|higher|>)",
            # Something else that is too large, or that took too long.
            r" (?:image|images|file|files|audio|video|document|pdf|attachment|header|headers|cookie|uri|url|schema"
            r"|name|tool|tools|function|functions|id)\b[^.;:]{0,40}\btoo (?:large|long|big|many)",
            r" (?:took|take|takes|taking|waited|waiting|idle|running|ran|open|been|for|after) too long",
        )
    )
)

_EXCESS = (
    r"(?:exceed|over ?flow|overrun|surpass|beyond|too (?:long|large|big|high|many)"
    r"|(?:longer|larger|greater|bigger|higher|more) than|over (?:the|its|by)|超)"
)
_CONTEXT = (
    r"(?:(?:context|ctx) (?:length|window|size|limit)|(?:max|maximum) context|tokens? limit"
    r"|(?:max|maximum|model max|allowed) (?:allowed |model |supported |input |prompt |message |sequence |total )?"
    r"(?:number of (?:input |prompt |total )?tokens|tokens? count|input|prompt|sequence|seq len|model len"
    r"|(?:message|context|allowed) tokens|length|tokens allowed)|max (?:seq|model|input|prompt|sequence) len)"
)

_OVERFLOW = re.compile(
    "|".join(
        (
            # What there is too much of, and of what: in either order, in one sentence.
            rf"{_CONTEXT}[^.;]{{0,60}}?\b{_EXCESS}",
            rf"{_EXCESS}[^.;]{{0,60}}?{_CONTEXT}",
            r"(?:context|ctx) (?:length|window|size|limit) (?:was |is |has been )?(?:reached|full)",
            r"reached (?:the )?(?:maximum |max )?context (?:length|window|size|limit)",
            r"(?:prompt|context) (?:is |has )?overflow",
            # The request itself is too long.
            rf"{_REQUEST}s?\b(?: [\w()]{{1,16}}){{0,4}}?:? too (?:long|large|big)\b",
            r"(?:request|payload|content)(?: body| entity| payload| size| content)?(?: is)? too large\b",
            r"request(?: size| body)? exceeds? the max(?:imum)?(?: allowed)? (?:size|length|number of bytes)",
            r"too many (?:input |prompt |context )tokens\b",
            r"too many tokens (?:in|for) (?:the |this |your )?(?:prompt|input|request|model|context|messages)",
            r"tokens?: size limit exceeded",
            rf"length of (?:the |your |all )?{_REQUEST}s? exceed",
            r"(?:exceed\w{0,3}|longer than|larger than|beyond) (?:the |this |your )?(?:available |model s )?context\b",
            r"(?:not fit|no room|not enough room|not enough space)[^.;]{0,30}?context",
            r"(?:prompt|input|inputs|messages?|request|context|conversation) tokens? (?:count )?exceeds? (?:the )?"
            r"(?:model s )?(?:model|limit|max|window)",
            r"number of tokens in (?:the |your )?(?:prompt|input|request|messages|context) exceed",
            r"too many total text bytes",
            rf"(?:total |the )?number of (?:input |prompt |total |context )?tokens[^.;]{{0,60}}?"
            rf"(?:cannot|can not|must not|may not|should not|exceed|over|larger|greater|more)[^.;]{{0,20}}?{_NUMBER}",
            # Numbers side by side: how much came, how much may.
            rf"(?:max|maximum|model s) (?:context|prompt|input|sequence|total)(?: token)?(?: length| size| window"
            rf"| tokens)?[^.;]{{0,20}}?(?:is|of|:|=) ?{_NUMBER}.{{0,40}}?\b(?:however|but|and your|while|requested"
            r"|contains|received|given|got|resulted|has)\b",
            rf"{_REQUEST}(?: token| tokens| length| size| count|s){{0,3}}[^.;\d]{{0,40}}+{_NUMBER}(?: tokens?)?\)?,?"
            r"[^.;]{0,30}?\b(?:exceed|only supports|but the (?:model|maximum|max|limit)|while (?:the )?limit"
            r"|larger than|longer than|greater than|more than|over the)",
            rf"current length is {_NUMBER} while",
            rf"(?:prompt|input|context|request)[^.;>\d]{{0,40}}+{_NUMBER}(?: tokens)? > (?:{_NUMBER}|max|model|ctx)",
            rf"(?:prompt|input)[^.;>+]{{0,40}}+\+[^.;>]{{0,40}}+> {_NUMBER}",
            rf"requested {_NUMBER} tokens[^.;]{{0,20}}?(?:context|model|maximum)",
            rf"expected maxlength: \d[\d,.]{{0,14}}? ?, ?actual: {_NUMBER}",
            # How long the input may be.
            r"range of (?:input|prompt|messages?)(?: token)?s? length should be",
            r"input length should be \[",
            r"(?:inputs?|prompt|prompts|messages|input tokens|prompt tokens|input length|prompt length)"
            r"(?: tokens)?(?: \(?\d[\d,.]{0,14}+\)?)?(?: \+ max new tokens)? must (?:have|be|contain)"
            r" (?:less|fewer|smaller|shorter|at most|no more|<|=|under|below)",
            # What would help.
            r"(?:reduce|shorten|decrease|trim|truncate|cut)(?: down)?(?: the| your)?"
            r"(?: size| length| number of tokens| amount| token count)?(?: of| in)?(?: the| your)?"
            r"(?: input| prompt| chat)? (?:prompt|messages?|inputs?|conversation|context|history|either one)\b",
            r"(?:provide|use|using|try|with) (?:a )?(?:shorter|smaller)(?: or fewer)?"
            r" (?:prompt|inputs?|context|messages?)",
            r"context the overflows\b",
            r"messages\[\d{1,6}\]\.content too long",
            # A message, or their list, longer than the API takes; not an id or a tool's name.
            r"invalid (?:messages|input)(?:\[\d{1,6}\]\.(?:content|output)[\w.\[\]]{0,40})? ?:"
            r" (?:string|array) too long",
            r"(?:prompt|输入|上下文|tokens?|消息|文本).{0,20}?(?:超长|过长|超过|超出)",
        )
    )
)

_LIMIT_AND_REQUESTED = re.compile(rf"limit:? ({_NUMBER})(?:,? used:? {_NUMBER})?,? (?:and )?requested:? ({_NUMBER})")
_LARGE_ANSWER = re.compile(rf"too large: ({_NUMBER})\.? .{{0,20}}?maximum context length is ({_NUMBER})")


def is_context_overflow(error: BaseException | str) -> bool:
    """Whether a failed model call failed because the context is larger than the model takes.

    `error` is what the model call raised, or its text. An exception is judged by its status, its codes, its body
    and its causes, whatever class a proxy put around them (case 200). Other errors of this project are none of a
    model's. Time is linear in the length of the text; nothing is raised.
    """
    if isinstance(error, str):
        return _says_overflow(error)
    if isinstance(error, ContextOverflow):
        return True
    if isinstance(error, BubError) and not isinstance(error, ModelError):
        return False
    return any(_one_is_overflow(cause) for cause in _causes(error))


def is_empty_refusal(error: BaseException) -> bool:
    """Whether a model call was refused with a status 400 and not a word: overflow, if the request was large (206)."""
    refused = next((cause for cause in _causes(error) if getattr(cause, "status_code", None) == 400), None)
    return refused is not None and not str(getattr(refused, "body", None) or "").strip("{}[] \n")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        # Our own words around a provider's: they hold advice, and a part of the text only.
        if not (isinstance(cause, ModelError) and cause.__cause__ is not None):
            yield cause
        cause = cause.__cause__


def _one_is_overflow(error: BaseException) -> bool:
    if getattr(error, "status_code", None) == 413:
        return True
    codes = [getattr(error, name, None) for name in ("code", "type")]
    if any(isinstance(code, str) and _is_code(code.lower()) for code in codes):
        return True
    body = getattr(error, "body", None)
    if isinstance(body, Mapping | list):
        return _says_overflow(json.dumps(body, default=str))
    return _says_overflow(body if isinstance(body, str) and body else str(error))


def _says_overflow(text: str) -> bool:
    words = [word for word in _words(_told(text)) if not _LINK.search(word)]
    spaced = " ".join(words)
    if _is_code(spaced) or _NUMBERED_CODE.search(spaced) or _TOO_LARGE_STATUS.search(spaced):
        return True
    plain = _REASON_PHRASE.sub("", f" {' '.join(_without_wrappers(words))} ".replace("_", " ").replace("-", " "))
    if _DECISIVE.search(plain):
        return True
    if numbers := _LIMIT_AND_REQUESTED.search(plain):
        # Over a minute's limit all by itself: waiting never helps (case 205).
        return _number(numbers[2]) > _number(numbers[1])
    if numbers := _LARGE_ANSWER.search(plain):
        # The answer that was asked for fits, and not together with the input.
        return _number(numbers[1]) < _number(numbers[2])
    return _OVERFLOW.search(plain) is not None and not _OTHER.search(plain)


def _is_code(text: str) -> bool:
    return any(code in text for code in _CODES)


def _told(text: str) -> str:
    """What an error object in `text` says, without what it repeats of the request; any other text as it is."""
    start = text.find("[{") if text.lstrip().startswith("[") else text.find("{")
    if start < 0:
        return text
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return text
    return " ".join((text[:start], *_strings(value, _MAX_NESTING), text[end:]))


def _strings(value: Any, nesting: int) -> Iterator[str]:
    if nesting == 0:
        return
    if isinstance(value, str):
        yield _told(value)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, nesting - 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, int | float):
                yield f"{key}: {item}"
            elif key.lower() in _TOLD_KEYS:
                if isinstance(item, str):
                    yield f"{key}:"
                yield from _strings(item, nesting - 1)


def _words(text: str) -> list[str]:
    lowered = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text.lower())
    return _SEPARATORS.split(lowered)


def _without_wrappers(words: list[str]) -> Iterator[str]:
    for word in words:
        name = word.strip(_PUNCTUATION)
        is_class = len(name) > 5 and name.endswith(("error", "exception"))
        if not is_class and not ("_" in name and any(part in name for part in _WRAPPER_PARTS)):
            yield word


def _number(text: str) -> float:
    digits = re.sub(r"\D", "", text)
    return float(digits) if digits else 0.0
