"""The options of a table that SQL has created with ``CREATE TABLE ... USING nsq OPTIONS (...)``.

Spark passes them when the table is created, for its schema, and not when it is read or written. Therefore the schema
keeps them, as metadata of its columns. A secret is not kept, because the metadata of columns is also written to files.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

_METADATA: Final = "nsq.options"
_OPTION_PREFIX: Final = "option."
_SECRETS: Final = ("authsecret", "auth_secret")

NOT_A_LOG: Final = (
    "a table of CREATE TABLE is read with mode=log only, because every query of it would take messages from the "
    "channel: set retain_for for its topics at every nsqd, or use spark.read"
)
"""The error for a table that would be read from a channel."""


def metadata_of(options: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a new table's columns; none if no table is being created."""
    given = {name: value for name, value in options.items() if name.startswith(_OPTION_PREFIX)}
    kept = {name.removeprefix(_OPTION_PREFIX): value for name, value in sorted(given.items())}
    return {_METADATA: json.dumps({name: kept[name] for name in kept if name not in _SECRETS})} if kept else {}


def options_in(schema: Any) -> dict[str, str] | None:
    """The options in a schema's metadata; None if it is not that of a table."""
    for field in schema.fields:
        if (kept := (field.metadata or {}).get(_METADATA)) is not None:
            return dict(json.loads(kept))
    return None


def merged(table: Mapping[str, str] | None, given: Mapping[str, str]) -> dict[str, str]:
    """The options of a query: its own, given by WITH (...), and those of the table."""
    return {**(table or {}), **{name.lower(): value for name, value in given.items()}} if table else dict(given)
