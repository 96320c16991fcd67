"""`bub-redis config show`."""

from pydantic import SecretStr

from bub_redis.cli.output import Terminal, print_json
from bub_redis.settings import config_path, given_settings, load_settings, variable
from bub_redis.storage.address import masked


def show_settings(*, as_json: bool) -> None:
    """Print the settings. Raises ConfigError."""
    settings, given = load_settings(), given_settings()
    rows = [(name, _shown(getattr(settings, name)), given.get(name)) for name in type(settings).model_fields]
    if as_json:
        for name, value, source in rows:
            print_json({"name": name, "variable": variable(name), "value": value, "source": source})
        return
    path = config_path(settings.home)
    terminal = Terminal()
    terminal.print(f"{path} {'is read' if path.exists() else 'does not exist'}", style="dim")
    terminal.columns(
        ("SETTING", "VALUE", "GIVEN BY"),
        [(variable(name), "" if value is None else str(value), source or "default") for name, value, source in rows],
    )


def _shown(value: object) -> object:
    """A value for output: a URL without its password."""
    if isinstance(value, SecretStr):
        return masked(value.get_secret_value())
    return value if value is None or isinstance(value, bool | int | float) else str(value)
