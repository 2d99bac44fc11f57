"""Which connections may register which broadcast addresses."""

import pytest

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
