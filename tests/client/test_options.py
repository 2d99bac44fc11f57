import pytest

from nsq_compat.client.options import address_list, split_options


def test_each_option_goes_where_it_belongs():
    subscription, connection = split_options({"max_in_flight": 7, "snappy": True})
    assert subscription.max_in_flight == 7
    assert connection.snappy


def test_an_option_of_neither_is_named():
    with pytest.raises(TypeError, match="snapy"):
        split_options({"snapy": True})


@pytest.mark.parametrize(
    ("given", "addresses"), [("h:1", ["h:1"]), (["h:1", "h:2"], ["h:1", "h:2"]), (("h:1",), ["h:1"]), (None, [])]
)
def test_addresses_are_one_or_several(given, addresses):
    assert address_list(given) == addresses
