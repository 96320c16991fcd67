"""Addresses of servers: what a URL may say, and how it is shown."""

import re
from urllib.parse import parse_qsl, urlsplit

from bub_redis.errors import ConfigError

_PARAMETERS = ("db", "username", "password", "client_name", "socket_connect_timeout")
_TLS_PARAMETERS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers")
_BARE_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}(/\d*)?")
_DATABASE = re.compile(r"/?|/\d{1,9}/?")


def masked(url: str) -> str:
    """`url` without its password and parameters, for logs and errors; `***` stands where a part of one may be."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return url if _BARE_ADDRESS.fullmatch(url) else "***"
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:
        # What stands in the port's place may be a part of the password.
        return f"{scheme}://***"
    if "@" in parts.path + parts.query + parts.fragment:
        # A password with a `/`, `?` or `#` that is not written as %2F, %3F or %23.
        return f"{scheme}://***"
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = parts.hostname or "localhost"
    return f"{parts.scheme}://{_bracketed(host)}:{port}{parts.path}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def check_url(url: str) -> None:
    """Raise ConfigError for what redis-py would take for something else, or find out about too late."""
    address = masked(url)
    if address.endswith("***"):
        return
    parts = urlsplit(url)
    if parts.scheme in {"redis", "rediss"} and not _DATABASE.fullmatch(parts.path):
        raise ConfigError(f"{address!r} ends in no database; write its number, such as /0")
    known = _PARAMETERS + (_TLS_PARAMETERS if parts.scheme == "rediss" else ())
    for name, _ in parse_qsl(parts.query):
        if name not in known:
            raise ConfigError(
                f"the URL of {address} has a parameter {name!r}, which is not taken; remove it, or write one of "
                + ", ".join(known)
            )


def url_beside(url: str, host: str, port: int) -> str:
    """`url` with another host and port in it: a node of the same cluster, for the same user."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    scheme = "rediss" if parts.scheme == "rediss" else "redis"
    return parts._replace(scheme=scheme, netloc=f"{user}{at}{_bracketed(host)}:{port}", path="").geturl()
