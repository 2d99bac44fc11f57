"""The user file, and the limits of attempts to log in."""

import threading

import pytest

from nsq_compat.web.admin.users import (
    MAX_OF_ADDRESS,
    MAX_OF_NAME,
    MAX_OF_PAIR,
    PasswordCheck,
    Role,
    TooBusy,
    TooManyAttempts,
    Users,
    make_line,
)

ADA = Users(make_line("ada", "admin", "secret"))


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
        ("ada:admin:scrypt$3$8$1$AA==$AA==", "cost"),
        ("ada:admin:scrypt$1048576$8$1$AA==$AA==", "cost"),
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


# --- Limits -----------------------------------------------------------------------------------------------------------


class Client:
    """Tries to log in; the test moves the time. Hashing takes no time."""

    def __init__(self):
        self.now = 0.0
        self.check = PasswordCheck(lambda work: work() if self.hashes else b"")
        self.hashes = True

    def tries(self, name="ada", password="wrong", address="10.0.0.1"):
        self.hashes = password != "wrong"
        return self.check.log_in(ADA, name, password, address, lambda: self.now)

    def is_refused(self, name="ada", address="10.0.0.1"):
        try:
            self.tries(name, "wrong", address)
        except TooManyAttempts as failure:
            return failure.seconds
        return 0


@pytest.fixture
def client():
    return Client()


def test_ten_failures_of_an_address_for_a_name_are_checked_in_a_minute(client):
    for second in range(MAX_OF_PAIR):
        client.now = second
        assert client.tries() is Role.NONE
    assert client.is_refused() == 60.0 - second
    with pytest.raises(TooManyAttempts):
        client.tries(password="secret")
    assert not client.is_refused("bob")
    assert not client.is_refused("ada", "10.0.0.2")
    client.now = 60.5
    assert client.tries(password="secret") is Role.ADMIN


def test_an_address_that_tries_many_names_is_refused_for_all_of_them(client):
    for number in range(MAX_OF_ADDRESS):
        assert not client.is_refused(f"user{number}")
    assert client.is_refused("ada") == 60.0
    assert not client.is_refused("ada", "10.0.0.2")


def test_the_addresses_of_one_ipv6_network_are_one_address(client):
    for number in range(MAX_OF_ADDRESS):
        client.tries(f"user{number}", address=f"2001:db8::{number:x}")
    assert client.is_refused("ada", "2001:db8::ffff:1")
    assert not client.is_refused("ada", "2001:db8:0:1::1")


def test_many_addresses_that_try_one_name_are_refused(client):
    for number in range(MAX_OF_NAME):
        assert not client.is_refused("ada", f"10.0.1.{number}")
    assert client.is_refused("ada", "10.0.2.1") == 60.0
    assert not client.is_refused("bob", "10.0.2.1")


def test_others_do_not_lock_a_user_out_where_the_user_has_logged_in_before(client):
    assert client.tries(password="secret", address="10.0.0.9") is Role.ADMIN
    for number in range(MAX_OF_NAME):
        client.tries(address=f"10.0.1.{number}")
    for number in range(MAX_OF_ADDRESS):
        client.tries(f"user{number}", address="10.0.0.9")
    assert client.tries(password="secret", address="10.0.0.9") is Role.ADMIN
    with pytest.raises(TooManyAttempts):
        client.tries(password="secret", address="10.0.3.1")


def test_passwords_that_are_being_checked_count_as_failures(client):
    """Otherwise, concurrent requests could try any number of them."""
    begun, may_end = threading.Semaphore(0), threading.Event()

    def hash_slowly(work):
        begun.release()
        assert may_end.wait(50)
        return b""

    check = PasswordCheck(hash_slowly)
    attempts = [
        threading.Thread(target=check.log_in, args=(ADA, "ada", f"wrong{number}", "10.0.0.1", lambda: 0.0))
        for number in range(MAX_OF_PAIR)
    ]
    for attempt in attempts:
        attempt.start()
        assert begun.acquire(timeout=50)
    with pytest.raises(TooManyAttempts):
        check.log_in(ADA, "ada", "secret", "10.0.0.1", lambda: 0.0)
    may_end.set()
    for attempt in attempts:
        attempt.join(50)


def test_concurrent_requests_with_the_right_password_are_hashed_once():
    users, hashed, may_end = Users(make_line("ada", "admin", "secret")), [], threading.Event()

    def hash_slowly(work):
        hashed.append(work)
        assert may_end.wait(50)
        return work()

    check, roles = PasswordCheck(hash_slowly), []
    requests = [
        threading.Thread(target=lambda: roles.append(check.log_in(users, "ada", "secret", "10.0.0.1", lambda: 0.0)))
        for _ in range(3 * MAX_OF_PAIR)
    ]
    for request in requests:
        request.start()
    may_end.set()
    for request in requests:
        request.join(50)
    assert roles == [Role.ADMIN] * len(requests)
    assert len(hashed) == 1


def test_an_attempt_that_is_refused_because_others_are_under_way_does_not_count():
    def refuse(work):
        raise TooBusy

    check, users = PasswordCheck(refuse), Users(make_line("ada", "admin", "secret"))
    for _ in range(2 * MAX_OF_PAIR):
        with pytest.raises(TooBusy):
            check.log_in(users, "ada", "secret", "10.0.0.1", lambda: 0.0)


def test_a_password_that_takes_longer_than_a_minute_to_check_fails_no_login():
    times = [0.0]

    def hash_slowly(work):
        times.append(times[-1] + 61)
        if len(times) == 2:
            assert check.log_in(ADA, "eve", "x", "10.0.0.2", lambda: times[-1]) is Role.NONE
        return work()

    check = PasswordCheck(hash_slowly)
    assert check.log_in(ADA, "ada", "secret", "10.0.0.1", lambda: times[-1]) is Role.ADMIN


def test_what_is_remembered_of_attempts_is_forgotten_after_a_minute(client):
    for number in range(100):
        client.tries(f"user{number}", address=f"10.0.{number}.1")
    client.now = 61.0
    client.tries()
    assert len(client.check._failed) == 3
    assert len(client.check._attempts) == 1
