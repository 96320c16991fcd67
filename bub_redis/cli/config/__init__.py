"""`bub-redis config`: the settings of this machine."""

import typer

from bub_redis.cli.arguments import AsJson

app = typer.Typer(
    name="config", help="The settings: BUB_* variables, then config.yml, then defaults.", no_args_is_help=True
)


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show every setting and where it is given; passwords are left out."""
    from bub_redis.cli.config.show import show_settings

    show_settings(as_json=as_json)
