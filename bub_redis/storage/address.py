"""Addresses of servers: what a URL may say, and how it is shown."""

import re
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from bub_redis.errors import ConfigError

_PARAMETERS = ("db", "username", "password", "client_name", "socket_connect_timeout")
_SENTINEL_PARAMETERS = ("service", "sentinel_username", "sentinel_password")
_TLS_PARAMETERS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers")
_SERVERS_OF = {"redis-sentinel": "redis", "rediss-sentinel": "rediss"}
"""Scheme of a URL that names sentinels → that of the servers that they tell of."""
_SCHEMES = frozenset({"redis", "rediss", *_SERVERS_OF})
_SENTINEL_PORT = 26_379
_SENTINEL = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?")
_BARE_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}(/\d*)?")
_DATABASE = re.compile(r"/?|/\d{1,9}/?")
HOW_TO_WRITE = (
    "write redis://[:password@]host:port/0, rediss://…, unix:///path or "
    "redis-sentinel://[:password@]host:port,host:port/0?service=name"
)


def masked(url: str) -> str:
    """`url` without its password and parameters, for logs and errors; `***` stands where a part of one may be."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return url if _BARE_ADDRESS.fullmatch(url) else "***"
    try:
        parts, hosts = _located(url)
    except ValueError:
        # What stands in the port's place may be a part of the password.
        return f"{scheme}://***"
    if "@" in parts.path + parts.query + parts.fragment:
        # A password with a `/`, `?` or `#` that is not written as %2F, %3F or %23.
        return f"{scheme}://***"
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{','.join(f'{_bracketed(host)}:{port}' for host, port in hosts)}{parts.path}"


def _located(url: str) -> tuple[SplitResult, list[tuple[str, int]]]:
    """The parts of a URL, and its hosts with their ports. Raises ValueError for one that is none."""
    parts = urlsplit(url)
    if parts.scheme in _SERVERS_OF:
        return parts, _sentinels(parts)
    return parts, [(parts.hostname or "localhost", parts.port or 6379)]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def check_url(url: str) -> None:
    """Raise ConfigError for what redis-py would take for something else, or find out about too late."""
    address = masked(url)
    if address.endswith("***"):
        _check_unreadable(url, address)
        return
    parts = urlsplit(url)
    if parts.scheme in _SCHEMES and not _DATABASE.fullmatch(parts.path):
        raise ConfigError(f"{address!r} ends in no database; write its number, such as /0")
    known = _PARAMETERS + (_TLS_PARAMETERS if parts.scheme.startswith("rediss") else ())
    given = parse_qsl(parts.query)
    if parts.scheme in _SERVERS_OF:
        known += _SENTINEL_PARAMETERS
        if "service" not in dict(given):
            raise ConfigError(
                f"{address} does not say which service; end it in ?service=name, as the sentinels call it"
            )
    for name, _ in given:
        if name not in known:
            raise ConfigError(
                f"the URL of {address} has a parameter {name!r}, which is not taken; remove it, or write one of "
                + ", ".join(known)
            )


def _check_unreadable(url: str, address: str) -> None:
    """Raise ConfigError for a URL that cannot be shown, unless it may be one: the path of a socket may hold an `@`.

    Nothing of it is told: also without an `@`, what stands in the port's place may be a password.
    """
    if url.partition("://")[0] not in _SCHEMES:
        return
    if "@" not in url:
        raise ConfigError(f"{address!r} is no Redis URL ({_fault(url)}); {HOW_TO_WRITE}")
    try:
        parts, _ = _located(url)
    except ValueError:
        parts = None
    if parts is None or "@" in parts.path + parts.fragment:
        raise ConfigError(
            f"{address!r} is no Redis URL; {HOW_TO_WRITE}; in a password @ # / : ? must be percent-encoded (# is %23)"
        )


def _fault(url: str) -> str:
    """What is wrong with a URL whose hosts cannot be told."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return "an IPv6 address stands between [ and ]"
    if scheme in _SERVERS_OF:
        return "a sentinel is named as host or host:port"
    return "its port is no number from 1 to 65535"


def url_beside(url: str, host: str, port: int) -> str:
    """`url` with another host and port in it: a node of the same cluster, for the same user."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    scheme = "rediss" if parts.scheme == "rediss" else "redis"
    return parts._replace(scheme=scheme, netloc=f"{user}{at}{_bracketed(host)}:{port}", path="").geturl()


def split_sentinels(url: str) -> tuple[str, list[str], str] | None:
    """A URL that names sentinels, as that of a server they may tell of, theirs, and the service; None for any other.

    Its user and password are those of the servers, as `sentinel_username` and `sentinel_password` are of the sentinels.
    Raises ValueError for a host or port that is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SERVERS_OF:
        return None
    scheme = _SERVERS_OF[parts.scheme]
    given = dict(parse_qsl(parts.query))
    service, user, password = (given.pop(name, "") for name in _SENTINEL_PARAMETERS)
    own = {name: value for name, value in given.items() if name not in {"db", "username", "password"}}
    signed_in = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
    hosts = [f"{_bracketed(host)}:{port}" for host, port in _sentinels(parts)]
    at = "".join(parts.netloc.rpartition("@")[:2])
    server = f"{scheme}://{at}{hosts[0]}{parts.path}?{urlencode(given)}"
    return server, [f"{scheme}://{signed_in}{host}/0?{urlencode(own)}" for host in hosts], service


def _sentinels(parts: SplitResult) -> list[tuple[str, int]]:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    found = [_SENTINEL.fullmatch(host) for host in hosts]
    if None in found:
        raise ValueError("a sentinel is named as host or host:port")
    return [(each["host"].strip("[]"), int(each["port"] or _SENTINEL_PORT)) for each in found if each]
