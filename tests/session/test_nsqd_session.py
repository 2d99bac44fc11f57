from nsq_compat.session.authorization import Access, AuthFailed
from nsq_compat.session.conversation import TlsFacts
from nsq_compat.session.negotiation import Layers, NsqdLimits, settings_before_identify
from nsq_compat.session.nsqd_session import figures
from nsq_compat.session.subscription import Counts


def figures_of(layers: Layers, access: Access | None = None):
    return figures(
        peer="10.0.0.1:5000",
        state=3,
        connect_ts=7,
        settings=settings_before_identify("10.0.0.1", NsqdLimits()),
        layers=layers,
        access=access,
        counts=Counts(ready_count=5, in_flight_count=2),
        pub_counts={b"b": 1, b"a": 2},
    )


def test_a_client_is_shown_with_what_it_was_given_and_what_it_published():
    shown = figures_of(Layers())
    assert (shown.remote_address, shown.state, shown.connect_ts, shown.version) == ("10.0.0.1:5000", 3, 7, "V2")
    assert (shown.ready_count, shown.in_flight_count) == (5, 2)
    assert shown.pub_counts == (("a", 2), ("b", 1))
    assert not shown.tls
    assert not shown.authed


def test_tls_is_shown_once_it_is_put_on():
    layers = Layers()
    layers.tls = TlsFacts(cipher_suite="TLS_AES_128_GCM_SHA256", version="tls1.3", common_name="")
    shown = figures_of(layers)
    assert (shown.tls, shown.tls_version, shown.tls_cipher_suite) == (True, "tls1.3", "TLS_AES_128_GCM_SHA256")


def test_who_has_not_said_who_he_is_is_not_authorized():
    def ask(secret: bytes):
        raise AuthFailed("nobody asked")

    assert not figures_of(Layers(), Access(ask)).authed
