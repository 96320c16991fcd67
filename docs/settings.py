"""Write docs/settings.md from the code: `python docs/settings.py`; with `--print` to stdout instead."""

import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from bub_redis.settings import Settings, variable

HEAD = """# Settings

Written by `python docs/settings.py` from [settings.py](../bub_redis/settings.py): do not edit.

A variable wins over `$BUB_HOME/config.yml`, and that over the default. In the file, which may be Bub's own, our keys
stand in a section of their own; one that is unknown there is an error, and Bub's sections are left alone:

```yaml
bub_redis:
  redis_url: redis://localhost:6379/0
  max_jobs: 20
spill:
  threshold: 4096
```

`bub-redis config show` prints what holds on a machine and where each value is given, without passwords. Names end in
their unit: `_s` is seconds.

| variable | in the file | default | |
|---|---|---|---|
"""


def page() -> str:
    """The page."""
    rows = []
    for name, field in Settings.model_fields.items():
        place = {"home": "–", "spill_threshold": "`spill.threshold`"}.get(name, f"`bub_redis.{name}`")
        told = " ".join((field.description or "").split())
        rows.append(f"| `{variable(name)}` | {place} | {_shown(field.default)} | {told} |\n")
    return HEAD + "".join(rows)


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case SecretStr():
            return f"`{value.get_secret_value()}`"
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
        case _:
            return f"`{value}`"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")
