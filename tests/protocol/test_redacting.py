import pytest

from nsq_compat.protocol.redacting import without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("what? me@home", "what? me@home"),
        ("https://host/auth", "https://host/auth"),
        ("https://me:p@ss@host:1/a?key=pw@x", "https://host:1/a"),
        ("--auth-http-address=http://me:pw@host", "--auth-http-address=http://host"),
        ("http://[::1", "http://[::1"),
    ],
)
def test_an_address_is_shown_without_its_secrets(text, shown):
    assert without_secrets(text) == shown
