"""nsqadmin's options. Names, types and defaults are NSQ's; options that NSQ does not have come last.

/config may change `log_level` and `nsqlookupd_http_addresses` while the program runs. `validate` normalises
`base_path`.
"""

import ipaddress
import posixpath
import socket
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from nsq_compat.cli.kinds import BOOLEAN, DURATION, STRING, OptionError
from nsq_compat.cli.options import DaemonOptions, option, repeated
from nsq_compat.cluster.http_client import HTTPS
from nsq_compat.net.sockets import split_host_port
from nsq_compat.protocol.durations import HOUR, MINUTE, SECOND
from nsq_compat.protocol.errors import hidden, without_secrets
from nsq_compat.web.admin.users import parse_role
from nsq_compat.web.hosts import allowed_name

PROGRAM: Final = "nsqadmin"


@dataclass(slots=True, kw_only=True)
class NsqadminOptions(DaemonOptions):
    """Fields are config keys. Durations are integer nanoseconds."""

    log_prefix: str = option(STRING, "[nsqadmin] ", "text at the start of every log line")

    http_address: str = option(
        STRING, "0.0.0.0:4171", "where browsers connect: host:port, or the path of a unix socket"
    )
    base_path: str = option(STRING, "/", "path under which everything is served")
    dev_static_dir: str = option(STRING, "", "folder to serve /static from, for development")

    # The cluster.
    nsqlookupd_http_addresses: tuple[str, ...] = repeated(
        "host:port of an nsqlookupd that knows the cluster, or https://host:port", flag="lookupd-http-address"
    )
    nsqd_http_addresses: tuple[str, ...] = repeated(
        "host:port of an nsqd, in a cluster without nsqlookupd", flag="nsqd-http-address"
    )
    http_client_connect_timeout: int = option(DURATION, 2 * SECOND, "time for connecting to nsqlookupd and nsqd")
    http_client_request_timeout: int = option(DURATION, 5 * SECOND, "time for a whole request to nsqlookupd and nsqd")
    access_file: str = option(
        STRING, "", "file with tokens for nsqadmin's own HTTP API: read, operate and admin (see nsq_access)"
    )
    cluster_token: str = option(
        STRING, "", "token for nsqlookupd and nsqd with an access file; needs the permission admin", secret=hidden
    )
    http_client_tls_insecure_skip_verify: bool = option(
        BOOLEAN, False, "do not check the certificates of nsqlookupd and nsqd"
    )
    http_client_tls_root_ca_file: str = option(STRING, "", "PEM file with the authorities of nsqlookupd and nsqd")
    http_client_tls_cert: str = option(STRING, "", "PEM file with the client certificate for nsqlookupd and nsqd")
    http_client_tls_key: str = option(STRING, "", "PEM file with the key of the client certificate")

    # Graphite.
    graphite_url: str = option(
        STRING, "", "URL of a Graphite that draws what nsqd's statsd sends", secret=without_secrets
    )
    proxy_graphite: bool = option(BOOLEAN, False, "fetch Graphite's graphs for the browser")
    statsd_prefix: str = option(STRING, "nsq.%s", "prefix of nsqd's statsd keys; %s stands for host and port")
    statsd_counter_format: str = option(STRING, "stats.counters.%s.count", "how Graphite names counters; %s is the key")
    statsd_gauge_format: str = option(STRING, "stats.gauges.%s", "how Graphite names gauges; %s is the key")
    statsd_interval: int = option(DURATION, MINUTE, "nsqd's --statsd-interval")

    # Permissions.
    allow_config_from_cidr: str = option(STRING, "127.0.0.1/8", "addresses that may use /config; empty for all")
    acl_http_header: str = option(
        STRING, "X-Forwarded-User", "header in which a proxy in front of nsqadmin names the user"
    )
    admin_users: tuple[str, ...] = repeated(
        "user with permission for changes; by default all users have it", flag="admin-user"
    )
    notification_http_endpoint: str = option(
        STRING, "", "URL that receives a POST for each action", secret=without_secrets
    )
    user_file: str = option(STRING, "", "file of users, roles and passwords; with it, users must log in")
    make_user: str = option(
        STRING, "", "`name:role`: read a password from stdin, print a line for --user-file", in_file=False
    )

    oidc_issuer: str = option(STRING, "", "URL of an OpenID Connect provider at which users log in")
    oidc_client_id: str = option(STRING, "", "nsqadmin's client id at the provider")
    oidc_client_secret: str = option(
        STRING, "", "the client's secret at the provider; none for a public client", secret=hidden
    )
    oidc_role_claim: str = option(STRING, "groups", "claim with the values of --oidc-role-map; a.b for a part of one")
    oidc_role_map: tuple[str, ...] = repeated("`value=role`: the role of accounts with this value; * for all accounts")
    oidc_scope: str = option(STRING, "openid profile email", "what nsqadmin asks the provider for, with blanks between")
    oidc_root_ca_file: str = option(STRING, "", "PEM file with the authorities of the provider")
    session_file: str = option(
        STRING, "", "file that nsqadmin makes, so that logins survive its restart; without it they end"
    )
    session_idle_timeout: int = option(
        DURATION, 12 * HOUR, "time without a request of the user after which a login ends"
    )
    session_timeout: int = option(DURATION, 7 * 24 * HOUR, "time after which every login ends")
    revoke_sessions: bool = option(BOOLEAN, False, "end all logins that --session-file has, and exit", in_file=False)
    allowed_hosts: tuple[str, ...] = repeated(
        "name under which nsqadmin is reached, besides IP addresses, names without a dot, and those of the machine and "
        "of --http-address; * for any",
        flag="allowed-host",
    )

    page_timeout: int = option(
        DURATION, 2 * SECOND, "time in which a page is complete; it marks daemons that did not answer by then"
    )
    sample_interval: int = option(
        DURATION, 10 * SECOND, "time between two samples of the cluster, for history; 0s for none"
    )


def validate(options: NsqadminOptions) -> None:
    """Check options, in NSQ's order, and resolve host names. Raises OptionError with NSQ's text."""
    lookupds, nsqds = options.nsqlookupd_http_addresses, options.nsqd_http_addresses
    if not lookupds and not nsqds:
        raise OptionError("--nsqd-http-address or --lookupd-http-address required")
    if lookupds and nsqds:
        raise OptionError("use --nsqd-http-address or --lookupd-http-address not both")
    if options.page_timeout <= 0:
        raise OptionError("--page-timeout must be > 0")
    if options.session_idle_timeout <= 0 or options.session_timeout <= 0:
        raise OptionError("--session-idle-timeout and --session-timeout must be > 0")
    if "_" in options.acl_http_header:  # docs/differences.md: acl-header
        raise OptionError(
            "--acl-http-header must not have an underscore: such a header cannot be told from that with a dash"
        )
    _check_tls(options)
    _check_graphite(options)
    _check_oidc(options)
    for address in lookupds:
        _resolve("lookupd-http-address", address.removeprefix(HTTPS))
    for address in nsqds:
        _resolve("nsqd-http-address", address)
    if cidr := options.allow_config_from_cidr:
        try:
            if "/" not in cidr:
                raise ValueError
            ipaddress.ip_network(cidr, strict=False)
        except ValueError:
            reason = f"invalid CIDR address: {cidr}"
            raise OptionError(f"failed to parse --allow-config-from-cidr ({cidr}) - {reason}") from None
    options.base_path = normalized_base_path(options.base_path)
    options.allowed_hosts = tuple(map(_allowed_host, options.allowed_hosts))


def _check_graphite(options: NsqadminOptions) -> None:
    url = urlsplit(options.graphite_url)
    if url.query or url.fragment:
        raise OptionError("--graphite-url must be a URL without a query")


def _check_oidc(options: NsqadminOptions) -> None:
    if not options.oidc_issuer:
        if options.oidc_client_id or options.oidc_role_map:
            raise OptionError("--oidc-client-id and --oidc-role-map need --oidc-issuer")
        return
    issuer = urlsplit(options.oidc_issuer)
    if issuer.scheme not in ("https", "http") or not issuer.hostname or issuer.query or issuer.fragment:
        raise OptionError("--oidc-issuer must be a URL without a query")
    if issuer.scheme == "http" and not is_loopback(issuer.hostname):
        raise OptionError("--oidc-issuer must begin with https, because it says who is an administrator")
    if not options.oidc_client_id or not options.oidc_role_claim:
        raise OptionError("--oidc-issuer needs --oidc-client-id and --oidc-role-claim")
    if not options.oidc_role_map:
        raise OptionError("--oidc-issuer needs --oidc-role-map: without it, no account has a role")
    for text in options.oidc_role_map:
        try:
            parse_role(text)
        except ValueError as error:
            raise OptionError(f"failed to parse --oidc-role-map ({text}) - {error}") from None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _allowed_host(text: str) -> str:
    try:
        return allowed_name(text)
    except ValueError as error:
        raise OptionError(f"failed to parse --allowed-host ({text}) - {error}") from None


def normalized_base_path(path: str) -> str:
    """The path with a leading slash and without a trailing one."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def _check_tls(options: NsqadminOptions) -> None:
    cert, key = options.http_client_tls_cert, options.http_client_tls_key
    root = options.http_client_tls_root_ca_file
    if cert and not key:
        raise OptionError("--http-client-tls-key must be specified with --http-client-tls-cert")
    if key and not cert:
        raise OptionError("--http-client-tls-cert must be specified with --http-client-tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if cert:
        try:
            context.load_cert_chain(cert, key, password="")  # otherwise OpenSSL asks at the terminal
        except (OSError, ValueError) as error:
            raise OptionError(f"failed to LoadX509KeyPair {cert}, {key} - {error}") from None
    if root:
        try:
            context.load_verify_locations(root)
        except ssl.SSLError:
            raise OptionError(f"failed to AppendCertsFromPEM {root}") from None
        except OSError as error:
            raise OptionError(f"failed to read TLS root CA file {root} - {error}") from None


def _resolve(flag: str, address: str) -> None:
    host_and_port = split_host_port(address)
    address = without_secrets(address)
    prefix = f"failed to resolve --{flag} ({address}) - "
    if host_and_port is None:
        missing = ":" not in address
        reason = "missing port in address" if missing else "too many colons in address"
        raise OptionError(f"{prefix}address {address}: {reason}")
    try:
        socket.getaddrinfo(*host_and_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise OptionError(f"{prefix}lookup {host_and_port[0]}: {reason.lower()}") from None
