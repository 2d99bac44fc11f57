"""nsq_access: access files that it makes, reads and changes."""

import fcntl
import json
import os
import re
import stat
import threading

import pytest

from nsq_compat.policy.access import AccessError, Tokens
from nsq_compat.tools.nsq_access import run


@pytest.fixture
def path(tmp_path):
    return tmp_path / "access.toml"


def new(path, name, *flags):
    return run(["new", f"--access-file={path}", f"--name={name}", *flags])


def test_a_new_token_is_printed_once_and_only_its_hash_is_in_the_file(path, capsys):
    assert new(path, "billing", "--permission=read", "--permission=publish", "--topic=orders", "--topic=b.*") == 0
    output = capsys.readouterr()
    token = output.out.strip()
    assert re.fullmatch("nsq_[A-Za-z0-9_-]{43}", token)
    assert token not in output.err + path.read_text()
    found = Tokens(path.read_text()).find(token.encode(), 0.0)
    assert found is not None
    assert (found.name, sorted(found.permissions)) == ("billing", ["publish", "read"])
    assert [topic for topic in ("orders", "bx", "x") if found.covers(topic)] == ["orders", "bx"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_token_expires_if_it_should(path, capsys):
    new(path, "a", "--permission=read", "--expires-in=1h")
    (token,) = Tokens(path.read_text())
    assert token.expires is not None
    run(["list", f"--access-file={path}"])
    assert re.search(r"^a: read, expires 20\d\d-", capsys.readouterr().out, re.MULTILINE)


def test_no_part_of_a_file_permits_more_than_the_file(path):
    new(path, "a", "--permission=publish", "--topic=orders", "--expires-in=1h")
    new(path, "b", "--permission=register", "--address=n1", "--expires-in=1h")
    text = path.read_text()
    limits = {each.name: (each.topics, each.addresses, each.expires) for each in Tokens(text)}
    for end in range(len(text)):
        try:
            found = Tokens(text[:end])
        except AccessError:
            continue
        for each in found:
            topics, addresses, expires = limits[each.name]
            assert (each.topics is None, each.addresses is None) == (topics is None, addresses is None)
            assert each.expires == expires


def test_what_is_listed_has_no_token_and_no_hash(path, capsys):
    new(path, "a", "--permission=admin", "--topic=x")
    new(path, "b", "--permission=register", "--address=n1")
    capsys.readouterr()
    assert run(["list", f"--access-file={path}", "--json"]) == 0
    output = capsys.readouterr().out
    assert json.loads(output)["tokens"] == [
        {
            "name": "a",
            "permissions": ["admin", "consume", "operate", "publish", "read"],
            "limited": True,
            "expires": None,
        },
        {"name": "b", "permissions": ["register"], "limited": False, "expires": None},
    ]
    assert "sha256" not in output


def test_a_revoked_token_is_gone_and_the_rest_stays_as_it_was(path):
    path.write_text("# who may what\n\n")
    for name in "abc":
        new(path, name, "--permission=read")
    text = path.read_text()
    os.chmod(path, 0o600)
    assert run(["revoke", f"--access-file={path}", "--name=b"]) == 0
    assert [token.name for token in Tokens(path.read_text())] == ["a", "c"]
    assert path.read_text().startswith("# who may what\n\n")
    assert set(path.read_text().splitlines()) < set(text.splitlines())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["access.toml"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["new", "--name=a", "--permission=read"], "--access-file is required"),
        (["new", "--access-file={path}", "--permission=read"], "--name is required"),
        (["new", "--access-file={path}", "--name=b"], "the new token: token 2: permissions is missing"),
        (["new", "--access-file={path}", "--name=b", "--permission=root"], "unknown permission 'root'"),
        (["new", "--access-file={path}", "--name=b", "--permission=read", "--topic=("], "not a regular expression"),
        (["new", "--access-file={path}", "--name=a", "--permission=read"], "another one has its name"),
        (["new", "--access-file=/none/x", "--name=b", "--permission=read"], "no such file or directory"),
        (["revoke", "--access-file={path}", "--name=b"], "the token b does not exist"),
        (["new", "--access-file={path}", "--name=b", "--permission=read", "--expires-in=-1h"], "must be positive"),
        (["list", "--access-file=/none/x"], "/none/x: no such file or directory"),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_is_explained(path, capsys, words, why):
    new(path, "a", "--permission=read")
    before = path.read_text()
    assert run([word.format(path=path) for word in words]) == 1
    assert why in capsys.readouterr().err
    assert path.read_text() == before


def test_a_token_that_is_not_in_a_table_of_its_own_is_left_to_the_operator(path, capsys):
    path.write_text(f'tokens = [{{name = "a", hash = "sha256:{"0" * 64}", permissions = ["read"]}}]\n')
    assert run(["revoke", f"--access-file={path}", "--name=a"]) == 1
    assert "delete it by hand" in capsys.readouterr().err


def test_tokens_that_are_made_at_the_same_time_are_all_there(path):
    threads = [threading.Thread(target=new, args=(path, f"t{number}", "--permission=read")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Tokens(path.read_text())) == 8


def test_a_lock_of_the_folder_which_other_users_can_take_holds_up_nothing(path):
    folder = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert run(["new", f"--access-file={path}", "--name=a", "--permission=read"]) == 0
    assert run(["revoke", f"--access-file={path}", "--name=a"]) == 0
    os.close(folder)


def test_a_new_file_is_for_its_owner_and_group_and_what_fails_makes_none(path):
    assert run(["new", f"--access-file={path}", "--name=a", "--permission=rule"]) == 1
    assert run(["revoke", f"--access-file={path}", "--name=a"]) == 1
    assert list(path.parent.iterdir()) == []
    assert run(["new", f"--access-file={path}", "--name=a", "--permission=read"]) == 0
    assert path.stat().st_mode & 0o777 == 0o640
    path.write_text("")
    assert run(["new", f"--access-file={path}", "--name=a", "--permission=rule"]) == 1
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_usage(capsys):
    assert run([]) == 2
    assert "new, list, revoke" in capsys.readouterr().err
    assert run(["--help"]) == 0
    assert run(["--version"]) == 0


def test_a_file_that_is_named_by_a_link_is_changed_by_one_program_at_a_time(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.toml"
    path.write_text("")
    link.symlink_to(path)
    threads = [
        threading.Thread(target=new, args=(path if number % 2 else link, f"t{number}", "--permission=read"))
        for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Tokens(path.read_text())) == 16
    assert link.is_symlink()


def test_what_is_no_regular_file_is_not_replaced(tmp_path, capsys):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        for words in (("new", "--name=a", "--permission=read"), ("revoke", "--name=a")):
            assert run([words[0], f"--access-file={path}", *words[1:]]) == 1
            assert "not a regular file" in capsys.readouterr().err
    assert pipe.is_fifo()
    assert link.is_symlink()
