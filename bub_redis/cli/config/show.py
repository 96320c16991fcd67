"""`bub-redis config show`."""

from collections.abc import Mapping

from pydantic import SecretStr

from bub_redis.cli.connect import url_problems
from bub_redis.cli.output import Terminal, print_json
from bub_redis.settings import (
    Settings,
    WrongSettings,
    config_path,
    given_settings,
    load_settings,
    values_as_given,
    variable,
)
from bub_redis.storage.address import masked

_URLS = ("redis_url", "tape_url")


def show_settings(*, as_json: bool) -> None:
    """Print the settings, those that are wrong too. Raises ConfigError that names these, after all are printed."""
    values, problems = _values()
    given = given_settings()
    rows = [(name, _shown(name, values[name]), given.get(name)) for name in Settings.model_fields]
    if as_json:
        for name, value, source in rows:
            row = {"name": name, "variable": variable(name), "value": value, "source": source}
            print_json({**row, "problem": problems.get(name)})
    else:
        _print(rows, problems)
    if problems:
        raise WrongSettings(problems)


def _values() -> tuple[Mapping[str, object], Mapping[str, str]]:
    """The settings, as they were written where some are wrong; and what is wrong. Raises ConfigError."""
    try:
        settings = load_settings()
    except WrongSettings as wrong:
        return values_as_given(), wrong.problems
    return {name: getattr(settings, name) for name in Settings.model_fields}, url_problems(settings)


def _print(rows: list[tuple[str, object, str | None]], problems: Mapping[str, str]) -> None:
    path = config_path()
    terminal = Terminal()
    terminal.print(f"{path} {'is read' if path.exists() else 'does not exist'}", style="dim")
    terminal.columns(
        ("SETTING", "VALUE", "GIVEN BY"),
        [
            (
                variable(name),
                "" if value is None else str(value),
                f"{source or 'default'}{' (WRONG)' if name in problems else ''}",
            )
            for name, value, source in rows
        ],
    )


def _shown(name: str, value: object) -> object:
    """A value for output: a URL without its password."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if name in _URLS and value is not None:
        return masked(str(value))
    return value if value is None or isinstance(value, bool | int | float) else str(value)
