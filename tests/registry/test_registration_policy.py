"""Which connections may register which broadcast addresses."""

import pytest

from nsq_compat.registry import registration_policy
from nsq_compat.registry.registration_policy import RegistrationPolicy


def claims(address: str, *rules: str, names: tuple[str, ...] = ("n1.nsqd.example",)) -> str:
    return RegistrationPolicy(rules).refusal(address, tls=True, names=names)


def test_without_rules_every_address_may_be_claimed():
    for tls in (False, True):
        assert RegistrationPolicy().refusal("anything at all", tls=tls, names=()) == ""


def test_tls_may_be_required():
    policy = RegistrationPolicy(tls_required=True)
    assert policy.refusal("n1", tls=False, names=()) == "TLS is required"
    assert policy.refusal("n1", tls=True, names=()) == ""
    assert policy.refused == 1


@pytest.mark.parametrize(
    ("rule", "address"),
    [
        ("n1.nsqd.example=10.0.0.7", "10.0.0.7"),
        ("n1.nsqd.example=10.0.0.*", "10.0.0.7"),
        ("n1.nsqd.example=10.**", "10.0.0.7"),
        ("*.nsqd.example=10.0.0.7", "10.0.0.7"),
        ("N1.nsqd.Example=HOST-*.example", "host-1.EXAMPLE."),
        ("n1.nsqd.example=node-*-*", "node-1-a"),
        ("n1.nsqd.example=**", "a.b.c"),
        ("**={name}", "n1.nsqd.example"),
        ("*.nsqd.example=x-{name}", "x-n1.nsqd.example"),
        ("n1.nsqd.example=fd00::*", "fd00:0:0::7"),
        ("n1.nsqd.example=fe80::*", "fe80::7%eth0"),
        ("n1.nsqd.example=fe80::7%eth*", "fe80::7%eth0"),
    ],
)
def test_an_address_that_matches_may_be_claimed(rule, address):
    assert claims(address, "other=**", rule) == ""


@pytest.mark.parametrize(
    ("rule", "address"),
    [
        ("n1.nsqd.example=10.0.0.*", "10.0.0.7.evil.example"),
        ("n1.nsqd.example=10.0.0.*", "10.0.0."),
        ("n1.nsqd.example=10.0.0.*", "10.0.0.example"),
        ("n1.nsqd.example=10.**", "10.evil.example"),
        ("n1.nsqd.example=10.0.0.*", "10.0.0.7\n"),
        ("n1.nsqd.example=*", "2130706433"),
        ("n1.nsqd.example=**", "0x7f000001"),
        ("n1.nsqd.example=**", "127.1"),
        ("n1.nsqd.example=**", "010.0.0.1"),
        ("n1.nsqd.example=**", "0x7f.0.0.1"),
        ("n1.nsqd.example=10.0.0.7", "10.0.0.70"),
        ("n1.nsqd.example=10.0.0.7", "10x0.0.7"),
        ("n1.nsqd.example=*.example", "a.b.example"),
        ("n1.nsqd.example=*.example", "evil/.example"),
        ("n1.nsqd.example=**.example", "user@evil/x.example"),
        ("*.nsqd.example=*.{name}", "2001:db8::5%x.n1.nsqd.example"),
        ("n1.nsqd.example=**.example", "::1%x.example"),
        ("n1.nsqd.example=fe80::7%eth*", "fe80::8%eth0"),
        ("*.example=10.0.0.7", "10.0.0.7"),
        ("nsqd.example=**", "10.0.0.7"),
        ("n1=**", "10.0.0.7"),
        ("**={name}", "n2.nsqd.example"),
        ("**={name}", "{name}"),
        ("n1.nsqd.example=", "10.0.0.7"),
    ],
)
def test_no_other_address_may_be_claimed(rule, address):
    if rule.endswith("="):
        with pytest.raises(ValueError, match="is not NAME=PATTERN"):
            claims(address, rule)
    else:
        assert claims(address, rule) != ""


def test_any_name_of_the_certificate_counts_and_wildcards_in_names_do_not():
    assert claims("10.0.0.7", "b=10.0.0.7", names=("a", "b")) == ""
    assert claims("10.0.0.7", "**={name}", names=("**", "*.*.*.*")) != ""
    assert claims("k1.example", "**={name}", names=("\u212a1.example",)) != ""  # the Kelvin sign, in lower case a k
    assert claims("10.0.0.7", "**=10.0.0.7", names=()) == "there is no certificate"


@pytest.mark.interpreted
def test_a_pattern_is_compiled_only_for_the_names_that_the_address_contains(monkeypatch):
    policy = RegistrationPolicy(["*.nsqd.example=x-{name}"])
    matcher, compiled = registration_policy._matcher, []

    def noted(pattern: str, own_name: str = "") -> object:
        compiled.append(own_name)
        return matcher(pattern, own_name)

    monkeypatch.setattr(registration_policy, "_matcher", noted)
    names = [f"n{number}.nsqd.example" for number in range(5000)]
    assert policy.refusal("x-n17.nsqd.example", tls=True, names=names) == ""
    assert compiled == ["n17.nsqd.example"]


def test_whether_every_connection_may_register_every_address():
    assert RegistrationPolicy().admits_all
    assert not RegistrationPolicy(["*={name}"]).admits_all
    assert not RegistrationPolicy(tls_required=True).admits_all
    assert not RegistrationPolicy(refuse_token=lambda token, address: "a valid token is needed").admits_all


def test_a_refusal_names_the_certificate_and_the_address_in_one_printable_line():
    names = ("a\nb", *(f"n{number}" for number in range(100)))
    assert claims("host", "x=y", names=names) == (
        r'a certificate for "a\nb", "n0", "n1" may not claim the broadcast address "host"'
    )
    assert claims("a\x1b" + "x" * 10_000, "x=y") == r'invalid broadcast address "a\x1b' + "x" * 58 + '"...'


@pytest.mark.parametrize("rule", ["", "name", "=10.0.0.7", "name="])
def test_a_rule_of_another_form_is_refused(rule):
    with pytest.raises(ValueError, match="is not NAME=PATTERN"):
        RegistrationPolicy([rule])
