import subprocess

import pytest

from nsq_compat.cli.errors import OptionError
from nsq_compat.cli.options import table_of
from nsq_compat.nsqadmin.options import NsqadminOptions, normalized_base_path, validate

NSQS_FLAGS = """
acl-http-header admin-user allow-config-from-cidr base-path config dev-static-dir graphite-url http-address
http-client-connect-timeout http-client-request-timeout http-client-tls-cert http-client-tls-insecure-skip-verify
http-client-tls-key http-client-tls-root-ca-file log-level log-prefix lookupd-http-address notification-http-endpoint
nsqd-http-address proxy-graphite statsd-counter-format statsd-gauge-format statsd-interval statsd-prefix verbose version
"""
OURS = {"user-file", "make-user", "sample-interval"}


def test_the_flags_are_nsqs_and_three_of_ours():
    assert {row.flag for row in table_of(NsqadminOptions)} == {*NSQS_FLAGS.split(), *OURS}


def test_config_keys_are_nsqs():
    keys = {row.flag: row.key for row in table_of(NsqadminOptions)}
    assert keys["lookupd-http-address"] == "nsqlookupd_http_addresses"
    assert keys["nsqd-http-address"] == "nsqd_http_addresses"
    assert keys["admin-user"] == "admin_users"
    assert keys["base-path"] == "base_path"


def options(**fields):
    return NsqadminOptions(**{"nsqd_http_addresses": ("127.0.0.1:4151",), **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"nsqd_http_addresses": ()}, "--nsqd-http-address or --lookupd-http-address required"),
        (
            {"nsqlookupd_http_addresses": ("127.0.0.1:4161",)},
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            {"http_client_tls_cert": "c"},
            "--http-client-tls-key must be specified with --http-client-tls-cert",
        ),
        (
            {"http_client_tls_key": "k"},
            "--http-client-tls-cert must be specified with --http-client-tls-key",
        ),
        (
            {"http_client_tls_cert": "/no/c", "http_client_tls_key": "/no/k"},
            "failed to LoadX509KeyPair /no/c, /no/k - ",
        ),
        ({"http_client_tls_root_ca_file": "/no/f"}, "failed to read TLS root CA file /no/f - "),
        ({"http_client_tls_root_ca_file": "/dev/null"}, "failed to AppendCertsFromPEM /dev/null"),
        (
            {"nsqd_http_addresses": ("127.0.0.1",)},
            "failed to resolve --nsqd-http-address (127.0.0.1) - address 127.0.0.1: missing port in address",
        ),
        (
            {"nsqd_http_addresses": ("http://127.0.0.1:4151",)},
            "failed to resolve --nsqd-http-address (http://127.0.0.1:4151) - "
            "address http://127.0.0.1:4151: too many colons in address",
        ),
        (
            {"allow_config_from_cidr": "foo"},
            "failed to parse --allow-config-from-cidr (foo) - invalid CIDR address: foo",
        ),
    ],
)
def test_what_it_cannot_run_with_is_refused_in_nsqs_words(fields, text):
    with pytest.raises(OptionError) as refused:
        validate(options(**fields))
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize(
    ("given", "normal"), [("", "/"), ("/", "/"), ("a", "/a"), ("/a/", "/a"), ("//a//b/../c", "/a/c"), ("/..", "/")]
)
def test_a_base_path_begins_with_a_slash_and_ends_with_none(given, normal):
    assert normalized_base_path(given) == normal


def test_certificates_are_loaded_before_anything_is_served(tmp_path):
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", key, "-out", cert, "-subj", "/CN=x", "-days", "1"),
        ],
        check=True,
        capture_output=True,
    )
    validate(
        options(http_client_tls_cert=str(cert), http_client_tls_key=str(key), http_client_tls_root_ca_file=str(cert))
    )
