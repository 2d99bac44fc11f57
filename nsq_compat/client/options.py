"""Keyword arguments to the two settings objects a consumer has, and addresses however they are written."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from nsq_compat.client.settings import SETTING_NAMES, ConnectionSettings
from nsq_compat.client.subscription import SubscriptionSettings

_SUBSCRIPTION_NAMES = frozenset(each.name for each in fields(SubscriptionSettings))


def split_options(options: Mapping[str, Any]) -> tuple[SubscriptionSettings, ConnectionSettings]:
    """Raises ``TypeError`` for a name that neither has, ``ValueError`` for a wrong value."""
    if unknown := options.keys() - _SUBSCRIPTION_NAMES - SETTING_NAMES:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    return (
        SubscriptionSettings(**{name: value for name, value in options.items() if name in _SUBSCRIPTION_NAMES}),
        ConnectionSettings(**{name: value for name, value in options.items() if name in SETTING_NAMES}),
    )


def address_list(addresses: str | Iterable[str] | None) -> list[str]:
    """One address, several, or none."""
    return [addresses] if isinstance(addresses, str) else list(addresses or ())
