import pytest

from nsq_compat.web.admin.users import MAX_ATTEMPTS, Role, Users, make_line


def test_a_user_of_a_made_line_can_log_in():
    users = Users(f"# people\n\n{make_line('ada', 'admin', 'secret')}\n{make_line('bob', 'viewer', 'x')}\n")
    assert users.log_in("ada", "secret") is Role.ADMIN
    assert users.log_in("bob", "x") is Role.VIEWER
    assert users.role_of("bob") is Role.VIEWER


def test_a_wrong_name_or_password_has_no_role():
    users = Users(make_line("ada", "admin", "secret"))
    assert users.log_in("ada", "wrong") is Role.NONE
    assert users.log_in("eve", "secret") is Role.NONE
    assert users.log_in("", "") is Role.NONE
    assert users.role_of("eve") is Role.NONE


def test_a_line_has_a_salted_hash_instead_of_the_password():
    first, second = (make_line("ada", "admin", "secret") for _ in range(2))
    assert "secret" not in first
    assert first != second


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ada", "role must be one of"),
        (":admin:x", "must begin with a valid user name"),
        ("ada:king:x", "role must be one of viewer, operator, admin"),
        ("ada:admin:secret", r"scrypt\$N"),
        ("ada:admin:scrypt$a$8$1$AA==$AA==", "invalid literal"),
        ("ada:admin:scrypt$2$8$1$*$AA==", "line 2"),
    ],
)
def test_an_invalid_line_is_named(line, reason):
    with pytest.raises(ValueError, match=reason):
        Users(f"\n{line}")


@pytest.mark.parametrize(
    ("name", "role", "password"), [("a b", "admin", "x"), ("a:b", "admin", "x"), ("a", "x", "x"), ("a", "admin", "")]
)
def test_invalid_users_are_not_made(name, role, password):
    with pytest.raises(ValueError, match=r"name|role|password"):
        make_line(name, role, password)


def test_a_verified_password_is_not_hashed_again():
    users = Users(make_line("ada", "admin", "secret"))
    assert [users.log_in("ada", "secret") for _ in range(3)] == 3 * [Role.ADMIN]
    assert users.log_in("ada", "other") is Role.NONE
    assert users.log_in("ada", "secret") is Role.ADMIN


def test_failed_attempts_are_limited_per_minute():
    users = Users("")
    for second in range(MAX_ATTEMPTS):
        assert users.may_try("10.0.0.1", "ada", second)
        users.add_failed("10.0.0.1", "ada", second)
    assert not users.may_try("10.0.0.1", "ada", 30.0)
    assert users.may_try("10.0.0.1", "bob", 30.0)
    assert users.may_try("10.0.0.2", "ada", 30.0)
    assert users.may_try("10.0.0.1", "ada", 61.0)
