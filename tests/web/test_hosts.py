"""Names under which a daemon answers over HTTP: other sites' names are refused (DNS rebinding)."""

import socket

import pytest

from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.web.hosts import HostCheck, allowed_name


class Pages:
    def admit(self, head):
        return Admission(1, Response(413))

    def respond(self, request):
        return Response(200, b"figures")


def check(*allowed, listener="0.0.0.0:4171", **options):
    return HostCheck(Pages(), "nsqadmin", listener, allowed, **options)


def ask(checked, host=None, path="/topics", **headers):
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    if host is not None:
        sent[b"host"] = host.encode("latin-1")
    return checked.respond(Request("GET", path.encode(), path, b"", sent, b"", "127.0.0.1:5"))


@pytest.mark.parametrize(
    "host",
    [
        *(
            None,
            "",
            "localhost",
            "localhost:4171",
            "LOCALHOST.:80",
            "127.0.0.1:4171",
            "10.1.2.3",
            "[::1]:4171",
            "[::1]",
        ),
        *("nsqadmin", "nsq_admin:4171", socket.gethostname(), f"{socket.gethostname().upper()}:4171"),
    ],
)
def test_ip_addresses_names_without_a_dot_and_the_machines_name_are_answered(host):
    assert ask(check(), host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:4171", "EVIL.example.", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("evil.example, localhost", "localhost, evil.example", "localhost:80@evil.example", "[evil.example]", "127.1"),
        *("evil.example:80:80", "[::1].evil.example", "a b", "\xe4.example", "x" * 64, "evil..localhost"),
    ],
)
def test_other_names_and_invalid_ones_are_refused(host):
    assert ask(check("nsqadmin.example.com"), host).status == 421


def test_a_refusal_says_in_the_answer_and_once_in_the_log_what_to_set(caplog):
    checked = check()
    answers = [ask(checked, "Admin.corp.example:80") for _ in range(3)]
    assert b"--allowed-host=admin.corp.example," in answers[0].body
    assert [record.levelname for record in caplog.records if "--allowed-host=admin.corp.example" in record.message] == [
        "WARNING"
    ]


def test_the_log_does_not_grow_with_the_names_that_are_tried(caplog):
    checked = check()
    for number in range(500):
        ask(checked, f"n{number}.evil.example")
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 100


@pytest.mark.parametrize("host", ["nsqadmin.example.com", "NSQADMIN.example.com.:8443"])
def test_an_allowed_name_is_answered_with_any_port(host):
    assert ask(check(allowed_name("NSQadmin.example.com.")), host).status == 200


def test_the_host_of_the_listener_is_allowed():
    assert ask(check(listener="admin.corp.example:4171"), "admin.corp.example:80").status == 200
    assert ask(check(listener="/run/nsqadmin.sock"), "admin.corp.example").status == 421


def test_an_asterisk_allows_every_name():
    assert ask(check("*"), "evil.example").status == 200


@pytest.mark.parametrize("path", ["/ping", "/livez", "/readyz"])
def test_probes_are_answered_under_any_name(path):
    assert ask(check(), "evil.example", path).status == 200
    assert ask(check(open_paths=["/ui" + path]), "evil.example", path).status == 421
    assert ask(check(open_paths=["/ui" + path]), "evil.example", "/ui" + path).status == 200


def test_a_request_with_a_token_may_use_any_name_where_wrong_tokens_are_refused():
    assert ask(check(), "evil.example", authorization="Bearer x").status == 421
    assert ask(check(authorized_pass=True), "evil.example", authorization="Bearer x").status == 200
    assert ask(check(authorized_pass=True), "evil.example").status == 421


@pytest.mark.parametrize(
    "text", ["", "a b", "https://nsqadmin.example.com", "nsqadmin.example.com:80", "*.example.com"]
)
def test_an_allowed_name_is_a_host_name(text):
    with pytest.raises(ValueError, match="must be a host name"):
        allowed_name(text)
