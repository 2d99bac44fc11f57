import ssl

import pytest

from nsq_compat.cli.options import table_of
from nsq_compat.client import Producer, PublishError
from nsq_compat.client.settings import SubscriptionSettings
from nsq_compat.tools import nsq_redrive, nsq_replay, nsq_rewind, nsq_stat, nsq_tail, nsq_to_http, nsq_to_nsq, to_nsq
from nsq_compat.tools.client_options import ReadingOptions, client_settings, cluster_of, shown_option
from nsq_compat.tools.nsq_to_file import main as nsq_to_file
from nsq_compat.tools.program import Refused
from nsq_conformance.certificates import Certificates
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("max_attempts,3", {"max_tries": 3}),
        ("max-attempts,0", {"max_tries": 0}),
        ("heartbeat_interval,5s", {"heartbeat_interval": 5.0}),
        ("output_buffer_timeout,10ms", {"output_buffer_timeout": 10}),
        ("snappy", {"snappy": True}),
        ("deflate,false", {"deflate": False}),
        ("msg_timeout,0s", {}),
        ("client_id,a,b", {"client_id": "a,b"}),
        ("read_timeout,1m", {}),
        ("user_agent,x", {}),
    ],
)
def test_go_nsqs_options_become_options_of_our_client(word, expected):
    assert client_settings("consumer-opt", [word]) == expected


def test_a_consumer_has_all_options():
    words = ["tls_v1", "lookupd_poll_interval,1s", "default_requeue_delay,0s", "auth_secret,s", "deflate_level,9"]
    SubscriptionSettings(**client_settings("consumer-opt", words))


@pytest.mark.parametrize(
    "options",
    [
        *(nsq_redrive.Options, nsq_replay.Options, nsq_rewind.Options, nsq_stat.Options, nsq_tail.Options),
        *(nsq_to_http.Options, nsq_to_nsq.Options, to_nsq.Options, nsq_to_file.Options),
    ],
)
def test_every_flag_of_a_utility_with_a_secret_has_a_file_and_a_variable(options):
    flags = [row for row in table_of(options) if row.key in ("consumer_opt", "producer_opt", "token")]
    assert flags
    assert [row.flag for row in flags if row.secret is None] == []


def test_flags_for_http_are_those_of_a_reader_of_logs():
    options = nsq_replay.Options(
        token="s3cret",
        http_client_tls_root_ca_file="/ca.pem",
        http_client_tls_cert="/c.pem",
        http_client_tls_key="/k.pem",
    )
    tls = {"ca_certs": "/ca.pem", "certfile": "/c.pem", "keyfile": "/k.pem"}
    assert options.log_settings() == {"auth_secret": "s3cret", "tls_options": tls}
    assert nsq_replay.Options().log_settings() == {}
    skipping = nsq_replay.Options(http_client_tls_insecure_skip_verify=True)
    context = SubscriptionSettings(**skipping.log_settings()).tls_context(check_hostname=True)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_options_of_consumers_are_not_for_producers():
    assert client_settings("producer-opt", ["max_attempts,3", "snappy,true"]) == {"snappy": True}


def test_tls_options_are_those_of_our_client():
    options = client_settings(
        "consumer-opt", ["tls_v1", "tls_root_ca_file,/ca.pem", "tls_cert,/c.pem", "tls_key,/k.pem"]
    )
    assert options["tls_options"] == {
        "cert_reqs": ssl.CERT_REQUIRED,
        "check_hostname": True,
        "ca_certs": "/ca.pem",
        "certfile": "/c.pem",
        "keyfile": "/k.pem",
    }
    skipping = client_settings("consumer-opt", ["tls_insecure_skip_verify"])["tls_options"]
    assert skipping == {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}


def test_a_certificate_of_the_same_authority_for_another_name_is_not_that_of_nsqd(tmp_path):
    """A client's own certificate must not be enough to be sent the secrets of others."""
    certificates, data_path = Certificates(tmp_path), tmp_path / "data"
    data_path.mkdir()
    own = [f"--tls-cert={certificates.client}", f"--tls-key={certificates.client}", "--https-address=127.0.0.1:0"]
    words = ["tls_v1", f"tls_root_ca_file,{certificates.root_ca}"]
    with NsqdProcess(installed_nsqd(), data_path, options=own) as nsqd:
        with (
            Producer(nsqd.tcp_address, **client_settings("producer-opt", words)) as producer,
            pytest.raises(PublishError, match="certificate is not valid for '127.0.0.1'"),
        ):
            producer.publish("t", b"secret", timeout=20)
        words.append("tls_insecure_skip_verify")
        with Producer(nsqd.tcp_address, **client_settings("producer-opt", words)) as producer:
            producer.publish("t", b"x", timeout=20)


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("x,1", "invalid option x"),
        ("sample_rate,200", "invalid sample_rate ! 200 > 99"),
        ("read_timeout,1ms", "invalid read_timeout ! 1ms < 0.1"),
        ("max_attempts,many", "cannot read max_attempts"),
        ("snappy,perhaps", "cannot read snappy"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(word, complaint):
    with pytest.raises(Refused, match=complaint):
        client_settings("consumer-opt", [word])


@pytest.mark.parametrize(
    ("word", "shown", "complaint"),
    [
        ("auth_secret,S3CRET", "auth_secret,***", ""),
        ("auth-secret,S3CRET", "auth-secret,***", ""),
        ("auth_secret=S3CRET", "auth_secret=***", "invalid option auth_secret; write auth_secret,VALUE"),
        ("auth-secret: S3CRET", "auth-secret:***", "invalid option auth_secret; write auth_secret,VALUE"),
        ("auth_sceret,S3CRET", "auth_sceret,***", "invalid option auth_sceret"),
        (" auth_secret,S3CRET", " ***", "invalid option "),
        ("tls_v1", "tls_v1", ""),
        ("tls_root_ca_file,/ca.pem", "tls_root_ca_file,/ca.pem", ""),
    ],
)
def test_a_secret_is_not_shown_however_its_option_is_written(word, shown, complaint):
    assert shown_option(word) == shown
    if complaint:
        with pytest.raises(Refused) as refused:
            client_settings("consumer-opt", [word])
        assert str(refused.value) == f'invalid value "{shown}" for flag -consumer-opt: {complaint}'


def test_an_address_may_be_a_url(lookupd):
    for address in ("{}", "http://{}", "http://{}/"):
        assert (
            cluster_of(ReadingOptions(lookupd_http_addresses=(address.format(lookupd.http_address),)), 20, 20)
            .topics()
            .value
            == []
        )
