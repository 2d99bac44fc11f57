"""NSQ's names for versions, cipher suites and failures."""

import pytest

from nsq_compat.net.tls_words import failure, suite_name, version_name


@pytest.mark.parametrize(
    ("openssl", "nsq"),
    [("TLSv1", "TLS1.0"), ("TLSv1.1", "TLS1.1"), ("TLSv1.2", "TLS1.2"), ("TLSv1.3", "TLS1.3"), (None, "Unknown None")],
)
def test_versions(openssl, nsq):
    assert version_name(openssl) == nsq


@pytest.mark.parametrize(
    ("openssl", "nsq"),
    [
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES256-SHA", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
        ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
        ("TLS_AES_128_GCM_SHA256", "Unknown 4865"),
        ("TLS_AES_256_GCM_SHA384", "Unknown 4866"),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "Unknown 49196"),
        ("something new", "Unknown 0"),
    ],
)
def test_cipher_suites(openssl, nsq):
    assert suite_name(openssl) == nsq


@pytest.mark.parametrize(
    ("reason", "detail", "text"),
    [
        ("WRONG_VERSION_NUMBER", "", "tls: first record does not look like a TLS handshake"),
        ("HTTP_REQUEST", "", "tls: first record does not look like a TLS handshake"),
        ("UNSUPPORTED_PROTOCOL", "", "tls: client offered only unsupported versions"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "", "tls: client didn't provide a certificate"),
        ("CERTIFICATE_VERIFY_FAILED", "expired", "tls: failed to verify certificate: x509: expired"),
        ("TLSV1_ALERT_UNKNOWN_CA", "", "remote error: tls: unknown ca"),
        ("DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "", "tls: decryption failed or bad record mac"),
    ],
)
def test_failures(reason, detail, text):
    assert failure(reason, detail) == text
