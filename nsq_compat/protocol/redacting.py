"""Texts that others may read, without what only a server should know."""


def without_secrets(text: str) -> str:
    """An address, or an argument that ends in one, without user and password and without its query.

    `https://me:pw@host/auth?key=1` is shown as `https://host/auth`; what is no URL comes back as it is.
    """
    scheme, separator, rest = text.partition("://")
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}" if separator else text
