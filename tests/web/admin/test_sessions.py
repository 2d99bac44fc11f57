"""Logins: what ends them, and the file in which this outlives nsqadmin."""

import fcntl
import json
import os
import stat
from threading import Barrier, Thread

import pytest

from nsq_compat.web.admin.sessions import MAX_ENDED, SessionFileError, Sessions, revoke


class Nsqadmin:
    """A process that uses the file; several may at once."""

    def __init__(self, path="", now=1000.0):
        self.now = now
        self.sessions = Sessions(lambda: self.now, idle_timeout=60.0, timeout=600.0, path=str(path))
        self.basis = b"hash"

    def logs_in(self, user="ada"):
        cookie: dict[str, object] = {}
        self.sessions.begin(cookie, user, self.basis)
        return cookie

    def accepts(self, cookie):
        """A process asks for the key at each request."""
        assert self.sessions.key
        return bool(self.sessions.user_of(dict(cookie), lambda user: self.basis, renew=False))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sessions"


def test_a_login_that_was_ended_is_refused_and_others_of_the_user_are_not(path):
    for nsqadmin in (Nsqadmin(), Nsqadmin(path)):
        first, second = nsqadmin.logs_in(), nsqadmin.logs_in()
        nsqadmin.sessions.end(dict(first))
        assert [nsqadmin.accepts(cookie) for cookie in (first, second)] == [False, True]


def test_logins_and_logouts_outlive_the_process_with_a_file_only(path):
    before = Nsqadmin(path)
    kept, ended = before.logs_in(), before.logs_in()
    before.sessions.end(dict(ended))
    after = Nsqadmin(path)
    assert after.sessions.key == before.sessions.key
    assert [after.accepts(cookie) for cookie in (kept, ended)] == [True, False]
    assert Nsqadmin().sessions.key != Nsqadmin().sessions.key


def test_a_logout_at_one_process_holds_at_others_with_the_same_file(path):
    one, other = Nsqadmin(path), Nsqadmin(path)
    cookies = [one.logs_in() for _ in range(3)]
    assert all(map(other.accepts, cookies))
    one.sessions.end(dict(cookies[0]))
    other.sessions.end(dict(cookies[1]))
    for each in (one, other, Nsqadmin(path)):
        assert [each.accepts(cookie) for cookie in cookies] == [False, False, True]


def test_revoking_ends_all_logins_at_once_and_new_ones_work(path):
    nsqadmin = Nsqadmin(path)
    cookie, key = nsqadmin.logs_in(), nsqadmin.sessions.key
    revoke(str(path))
    assert not nsqadmin.accepts(cookie)
    assert nsqadmin.sessions.key != key
    assert nsqadmin.accepts(nsqadmin.logs_in())


def test_revoking_ends_a_login_whose_cookie_was_verified_before(path):
    nsqadmin = Nsqadmin(path)
    cookie = nsqadmin.logs_in()
    assert nsqadmin.accepts(cookie)
    revoke(str(path))
    assert nsqadmin.sessions.user_of(cookie, lambda user: nsqadmin.basis, renew=False) == ""


def test_revoking_at_a_path_without_a_file_fails_because_the_logins_are_elsewhere(path):
    nsqadmin = Nsqadmin(path)
    cookie = nsqadmin.logs_in()
    with pytest.raises(SessionFileError, match="No such file"):
        revoke(f"{path}s")
    assert os.listdir(path.parent) == ["sessions"]
    assert nsqadmin.accepts(cookie)


def test_a_symbolic_link_to_the_file_is_the_file(path, tmp_path):
    nsqadmin = Nsqadmin(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    through_link = Nsqadmin(link)
    first, second = nsqadmin.logs_in(), nsqadmin.logs_in()
    through_link.sessions.end(dict(first))
    assert [nsqadmin.accepts(cookie) for cookie in (first, second)] == [False, True]
    revoke(str(link))
    assert not nsqadmin.accepts(second)
    assert link.is_symlink()


def test_what_is_no_regular_file_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        for use in (Nsqadmin, lambda path: revoke(str(path))):
            with pytest.raises(SessionFileError, match="not a regular file|Is a directory"):
                use(path)
    assert pipe.is_fifo()


def test_a_lock_of_the_folder_which_other_users_can_take_holds_up_nothing(path):
    folder = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    nsqadmin = Nsqadmin(path)
    cookie = nsqadmin.logs_in()
    nsqadmin.sessions.end(dict(cookie))
    assert not Nsqadmin(path).accepts(cookie)
    revoke(str(path))
    os.close(folder)


def test_processes_that_begin_and_end_logins_together_lose_none(path):
    together = Barrier(8)
    cookies = []

    def log_in_and_out(user):
        together.wait()
        nsqadmin = Nsqadmin(path)
        for _ in range(5):
            cookies.append(nsqadmin.logs_in(user))
            nsqadmin.sessions.end(dict(cookies[-1]))

    threads = [Thread(target=log_in_and_out, args=(f"user{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cookies) == 40
    assert not any(map(Nsqadmin(path).accepts, cookies))
    assert {user: len(each["ids"]) for user, each in json.loads(path.read_text())["ended"].items()} == {
        f"user{number}": 5 for number in range(8)
    }


def test_a_login_ends_at_the_timeouts(path):
    nsqadmin = Nsqadmin(path)
    cookie = nsqadmin.logs_in()
    nsqadmin.now += 59
    assert nsqadmin.accepts(cookie)
    nsqadmin.now += 1
    assert not nsqadmin.accepts(cookie)
    nsqadmin.now = 1000.0
    while nsqadmin.now < 1590.0:
        nsqadmin.now += 50
        assert nsqadmin.sessions.user_of(cookie, lambda user: b"hash", renew=True) == (
            "ada" if nsqadmin.now < 1600 else ""
        )


def test_a_login_ends_when_what_it_rests_on_changes():
    nsqadmin = Nsqadmin()
    cookie = nsqadmin.logs_in()
    for basis in (b"", b"other"):
        nsqadmin.basis = basis
        assert not nsqadmin.accepts(cookie)


@pytest.mark.parametrize(
    "change", [{"user": "bob"}, {"began": 2000.0}, {"began": "x"}, {"seen": None}, {"tag": ""}, {"tag": 1}, {"user": 1}]
)
def test_a_cookie_with_other_values_is_no_login(change):
    nsqadmin = Nsqadmin()
    assert not nsqadmin.accepts({**nsqadmin.logs_in(), **change})


def test_many_logouts_of_a_user_are_remembered_in_bounded_space(path):
    nsqadmin = Nsqadmin(path)
    other = nsqadmin.logs_in("bob")
    cookies = [nsqadmin.logs_in() for _ in range(MAX_ENDED + 2)]
    for cookie in cookies[:-1]:
        nsqadmin.sessions.end(dict(cookie))
    # The last one was not ended by itself.
    assert not any(map(nsqadmin.accepts, cookies))
    assert json.loads(path.read_text())["ended"]["ada"]["ids"] == {}
    assert nsqadmin.accepts(other)
    nsqadmin.now += 1
    assert nsqadmin.accepts(nsqadmin.logs_in())


def test_logouts_are_forgotten_when_the_logins_would_have_ended(path):
    nsqadmin = Nsqadmin(path)
    nsqadmin.sessions.end(nsqadmin.logs_in())
    nsqadmin.now += 601
    nsqadmin.sessions.end(nsqadmin.logs_in("bob"))
    assert set(json.loads(path.read_text())["ended"]) == {"bob"}


def test_the_file_is_for_its_owner_only_and_one_that_others_can_read_is_refused(path):
    Nsqadmin(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(SessionFileError, match="other users may access it"):
        Nsqadmin(path)
    revoke(str(path))
    path.chmod(0o660)
    nsqadmin = Nsqadmin(path)
    nsqadmin.sessions.end(nsqadmin.logs_in())
    # Its group keeps its access.
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize("text", ["{}", "[]", '{"key": "AAAA", "ended": {}}', '{"key": 1, "ended": {}}', "[" * 100_000])
def test_a_file_with_other_content_is_refused(path, text):
    path.write_text(text)
    path.chmod(0o600)
    for use in (lambda: Nsqadmin(path), lambda: revoke(str(path))):
        with pytest.raises(SessionFileError, match="not a file that nsqadmin has written"):
            use()
    assert path.read_text() == text


def test_a_file_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(SessionFileError, match="no such file|No such file"):
        Nsqadmin(tmp_path / "none" / "sessions")


def test_all_logins_end_when_the_file_is_gone_and_new_ones_work(path, caplog):
    nsqadmin = Nsqadmin(path)
    cookie = nsqadmin.logs_in()
    assert nsqadmin.accepts(cookie)
    path.unlink()
    assert not nsqadmin.accepts(cookie)
    assert nsqadmin.accepts(nsqadmin.logs_in())
    assert caplog.text.count("all logins have ended") == 1


def test_all_logins_end_when_the_file_is_gone_before_the_first_request(path):
    cookie = Nsqadmin(path).logs_in()
    nsqadmin = Nsqadmin(path)
    path.unlink()
    assert not nsqadmin.accepts(cookie)


def test_a_logout_that_cannot_be_written_holds_in_this_process(path, caplog):
    nsqadmin = Nsqadmin(path)
    cookie = nsqadmin.logs_in()
    os.mkdir(f"{path}.new")
    nsqadmin.sessions.end(dict(cookie))
    assert not nsqadmin.accepts(cookie)
    assert "the logout of ada is forgotten at the next start" in caplog.text
