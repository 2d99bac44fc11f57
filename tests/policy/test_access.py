"""The access file: what it may contain, and what its tokens permit."""

import re

import pytest

from nsq_compat.policy.access import AccessError, AccessFile, Tokens, hash_of, is_token, make_token

HASH = hash_of(b"secret")


def row(**settings: str) -> str:
    values = {"name": '"billing"', "hash": f'"{HASH}"', "permissions": '["read"]', **settings}
    return "[[tokens]]\n" + "".join(f"{key} = {value}\n" for key, value in values.items() if value)


def test_a_token_is_found_by_its_text():
    tokens = Tokens(row())
    token = tokens.find(b"secret", 0.0)
    assert token is not None
    assert (token.name, set(token.permissions)) == ("billing", {"read"})
    for other in (b"", b"secret ", b"Secret", HASH.encode()):
        assert tokens.find(other, 0.0) is None


def test_an_expired_token_is_not_found():
    tokens = Tokens(row(expires="1970-01-01T00:01:40Z"))
    assert tokens.find(b"secret", 99.9) is not None
    assert tokens.find(b"secret", 100.0) is None


@pytest.mark.parametrize(
    ("given", "included"),
    [
        ("read", {"read"}),
        ("operate", {"operate", "read"}),
        ("admin", {"admin", "operate", "read", "publish", "consume"}),
        ("register", {"register"}),
        ("mirror", {"mirror"}),
    ],
)
def test_permissions_include_weaker_ones(given, included):
    token = Tokens(row(permissions=f'["{given}"]')).find(b"secret", 0.0)
    assert token is not None
    assert token.permissions == included


@pytest.mark.parametrize(
    ("topics", "covered", "others"),
    [
        ('["orders"]', ["orders"], ["orders2", "my.orders", "", "orders\n"]),
        ('["a.*", "b"]', ["a", "ab", "b"], ["ba", "c"]),
        ('["a|b"]', ["a", "b"], ["ab", "ax", "xb"]),
        ('["(?i)A"]', ["a", "A"], ["aa"]),
    ],
)
def test_patterns_cover_whole_names(topics, covered, others):
    token = Tokens(row(topics=topics)).find(b"secret", 0.0)
    assert token is not None
    assert [name for name in (*covered, *others) if token.covers(name)] == covered


def test_only_a_token_with_the_permission_registers_and_only_its_addresses():
    def may(address: str, **settings: str) -> bool:
        token = Tokens(row(**settings)).find(b"secret", 0.0)
        assert token is not None
        return token.may_register(address)

    assert may("n1", permissions='["register"]')
    assert not may("n1", permissions='["admin"]')
    assert may("n1", permissions='["register"]', addresses='["n[0-9]"]')
    assert not may("n10", permissions='["register"]', addresses='["n[0-9]"]')
    assert may("fe80::1%eth0", permissions='["register"]', addresses='["fe80::.*"]')
    assert may("fe80::1%eth0", permissions='["register"]', addresses='["fe80::1%eth[0-9]"]')
    for address in ("::1%x.example", "evil/x.example", "evil:80@x.example", "a\u0308.example"):
        assert not may(address, permissions='["register"]', addresses='[".*[.]example"]')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tokens = 5", "tokens must be tables"),
        ("tokens = [5]", "tokens must be tables"),
        ("x = 1", "unknown setting 'x'"),
        ("[[tokens", "Expected ']]'"),
        (row(name=""), "token 1: name is missing"),
        (row(hash=""), "token 1: hash is missing"),
        (row(permissions=""), "token 1: permissions is missing"),
        (row(name='" a"'), "token 1: name: must be a text"),
        (row(name="5"), "token 1: name: must be a text"),
        (row(hash='"sha256:00"'), "token 1: hash: must be sha256: and 64"),
        (row(hash=f'"{"x" * 71}"'), "token 1: hash: must be sha256: and 64"),
        (row(permissions='[["read"]]'), "unknown permission ['read']"),
        (row(permissions="[{a = 1}]"), "unknown permission {'a': 1}"),
        (row(expires="0001-01-01T00:00:00+23:59"), "token 1: expires: must be a time from the year 1 to 9999"),
        (row(expires="9999-12-31T23:59:59-23:59"), "token 1: expires: must be a time from the year 1 to 9999"),
        ("x = " + "[" * 5000, "it is nested too deeply"),
        (row(permissions="[]"), "token 1: permissions: must be a list"),
        (row(permissions='["root"]'), "token 1: permissions: unknown permission 'root', not one of read, publish"),
        (row(topics="[]"), "token 1: topics: must be a list"),
        (row(topics='["("]'), "token 1: topics: not a regular expression"),
        (row(topics='["a)|(b"]'), "token 1: topics: not a regular expression"),
        (row(topics="[1]"), "token 1: topics: not a regular expression"),
        (row(permissions='["mirror"]', topics='["t"]'), "mirror and register cannot be limited to topics"),
        (row(permissions='["register", "read"]', topics='["t"]'), "mirror and register cannot be limited"),
        (row(addresses='["n1"]'), "token 1: addresses: has no effect without the permission register"),
        (row(expires='"soon"'), "token 1: expires: must be a time with its zone"),
        (row(expires="2027-01-01T00:00:00"), "token 1: expires: must be a time with its zone"),
        (row(colour='"red"'), "token 1: unknown setting 'colour'"),
        (row() + row(hash=f'"{hash_of(b"x")}"'), "token 2: another one has its name or hash"),
        (row() + row(name='"other"'), "token 2: another one has its name or hash"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(text, why):
    with pytest.raises(AccessError, match=re.escape(why)):
        Tokens(text)


def test_an_invalid_file_does_not_replace_the_tokens(tmp_path, caplog):
    path = tmp_path / "access.toml"
    path.write_text(row())
    access = AccessFile(str(path))
    path.write_text("tokens = 5")
    assert not access.reload()
    assert "failed to load the access file" in caplog.text
    assert "access.toml - tokens must be tables" in caplog.text
    path.unlink()
    assert not access.reload()
    assert "No such file" in caplog.text
    assert access.tokens.find(b"secret", 0.0) is not None
    path.write_text("")
    assert access.reload()
    assert access.tokens.find(b"secret", 0.0) is None


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path):
    path = tmp_path / "access.toml"
    path.write_text(row(), encoding="utf-8-sig")
    assert len(AccessFile(str(path)).tokens) == 1


def test_without_its_file_a_daemon_does_not_start(tmp_path):
    with pytest.raises(AccessError, match="failed to load the access file .*none - No such file"):
        AccessFile(str(tmp_path / "none"))


def test_new_tokens_are_long_and_differ():
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch("nsq_[A-Za-z0-9_-]{43}", token) for token in tokens)


@pytest.mark.parametrize(
    ("text", "is_one"), [("", True), ("nsq_x", True), ("a b", False), ("a\r\nX: y", False), ("\N{SNOWMAN}", False)]
)
def test_a_token_fits_into_a_header(text, is_one):
    assert is_token(text) == is_one
