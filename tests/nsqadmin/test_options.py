import subprocess

import pytest

from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.options import table_of
from nsq_compat.nsqadmin.options import NsqadminOptions, normalized_base_path, validate

NSQ_FLAGS = {
    # flag: (type in the usage text, default there)
    "acl-http-header": ("string", '"X-Forwarded-User"'),
    "admin-user": ("value", ""),
    "allow-config-from-cidr": ("string", '"127.0.0.1/8"'),
    "base-path": ("string", '"/"'),
    "config": ("string", ""),
    "dev-static-dir": ("string", ""),
    "graphite-url": ("string", ""),
    "http-address": ("string", '"0.0.0.0:4171"'),
    "http-client-connect-timeout": ("duration", "2s"),
    "http-client-request-timeout": ("duration", "5s"),
    "http-client-tls-cert": ("string", ""),
    "http-client-tls-insecure-skip-verify": ("", ""),
    "http-client-tls-key": ("string", ""),
    "http-client-tls-root-ca-file": ("string", ""),
    "log-level": ("value", "INFO"),
    "log-prefix": ("string", '"[nsqadmin] "'),
    "lookupd-http-address": ("value", ""),
    "notification-http-endpoint": ("string", ""),
    "nsqd-http-address": ("value", ""),
    "proxy-graphite": ("", ""),
    "statsd-counter-format": ("string", '"stats.counters.%s.count"'),
    "statsd-gauge-format": ("string", '"stats.gauges.%s"'),
    "statsd-interval": ("duration", "1m0s"),
    "statsd-prefix": ("string", '"nsq.%s"'),
    "verbose": ("", ""),
    "version": ("", ""),
}
OURS = {
    "access-file",
    "cluster-token",
    "cluster-token-file",
    "graphite-url-file",
    "max-connections-per-address",
    "max-new-connections-per-second",
    "notification-http-endpoint-file",
    "allowed-host",
    *(
        f"oidc-{name}"
        for name in (
            "issuer",
            "client-id",
            "client-secret",
            "client-secret-file",
            "role-claim",
            "role-map",
            "scope",
            "root-ca-file",
        )
    ),
    "check-config",
    "log-format",
    "user-file",
    "make-user",
    "page-timeout",
    "sample-interval",
    "session-file",
    "session-idle-timeout",
    "session-timeout",
    "revoke-sessions",
}


def test_flags_types_and_defaults_are_nsqs():
    shown = {
        row.flag: (row.kind.type_name, "" if (text := row.kind.show(row.default)) == row.kind.unset else text)
        for row in table_of(NsqadminOptions)
        if row.flag not in OURS
    }
    assert shown == NSQ_FLAGS


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
        ({"nsqlookupd_http_addresses": ("h:4161",)}, "use --nsqd-http-address or --lookupd-http-address not both"),
        ({"http_client_tls_cert": "c"}, "--http-client-tls-key must be specified with --http-client-tls-cert"),
        ({"http_client_tls_key": "k"}, "--http-client-tls-cert must be specified with --http-client-tls-key"),
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
            {"nsqd_http_addresses": ("http://h:4151",)},
            "failed to resolve --nsqd-http-address (http://h:4151) - address http://h:4151: too many colons in address",
        ),
        (
            {"allowed_hosts": ("ok.example", "http://h")},
            "failed to parse --allowed-host (http://h) - it must be a host name without scheme and port, or *",
        ),
        ({"graphite_url": "http://g/?access_token=s"}, "--graphite-url must be a URL without a query"),
        ({"oidc_client_id": "c"}, "--oidc-client-id and --oidc-role-map need --oidc-issuer"),
        ({"oidc_issuer": "accounts.example.com"}, "--oidc-issuer must be a URL without a query"),
        ({"oidc_issuer": "http://accounts.example.com"}, "--oidc-issuer must begin with https"),
        ({"oidc_issuer": "http://127.0.0.1.example.com"}, "--oidc-issuer must begin with https"),
        ({"oidc_issuer": "https://a.example"}, "--oidc-issuer needs --oidc-client-id"),
        ({"oidc_issuer": "https://a.example", "oidc_client_id": "c"}, "--oidc-issuer needs --oidc-role-map"),
        (
            {"oidc_issuer": "http://[::1]:1", "oidc_client_id": "c", "oidc_role_map": ("a=b=admin", "a=none")},
            "failed to parse --oidc-role-map (a=none) - it must be value=role, and the role one of viewer, operator,",
        ),
        ({"session_timeout": 0}, "--session-idle-timeout and --session-timeout must be > 0"),
        (
            {"acl_http_header": "X_Remote_User"},
            "--acl-http-header must not have an underscore: such a header cannot be told from that with a dash",
        ),
        ({"allow_config_from_cidr": "a"}, "failed to parse --allow-config-from-cidr (a) - invalid CIDR address: a"),
    ],
)
def test_invalid_options_have_nsqs_error_texts(fields, text):
    with pytest.raises(OptionError) as refused:
        validate(options(**fields))
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize(
    ("given", "normal"), [("", "/"), ("/", "/"), ("a", "/a"), ("/a/", "/a"), ("//a//b/../c", "/a/c"), ("/..", "/")]
)
def test_a_base_path_has_a_leading_and_no_trailing_slash(given, normal):
    assert normalized_base_path(given) == normal


def test_certificates_are_checked_at_the_start(tmp_path):
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
