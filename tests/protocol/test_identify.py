import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.protocol.go_json import JsonError
from nsq_compat.protocol.identify import (
    IdentifyRequest,
    decode_identify,
    decode_identify_response,
)

RESPONSE = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
    b'"deflate":true,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
    b'"output_buffer_size":16384,"output_buffer_timeout":250,"topology_region":"\\u003cr\\u003e","topology_zone":""}'
)


def test_a_request_is_decoded():
    said: dict[str, Any] = {
        "client_id": "c",
        "hostname": "h",
        "heartbeat_interval": 1000,
        "output_buffer_size": -1,
        "output_buffer_timeout": 25,
        "feature_negotiation": True,
        "tls_v1": True,
        "deflate": True,
        "deflate_level": 9,
        "snappy": True,
        "sample_rate": 99,
        "user_agent": "u/1",
        "msg_timeout": 2000,
        "topology_region": "r",
        "topology_zone": "z",
    }
    assert decode_identify(json.dumps(said).encode()) == IdentifyRequest(**said)


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"client_id":null}', b'{"short_id":"ignored"}'])
def test_absent_fields_are_zero(body):
    assert decode_identify(body) == IdentifyRequest()


def test_values_out_of_range_are_not_refused():
    assert decode_identify(b'{"heartbeat_interval":-7}').heartbeat_interval == -7


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"client_id":1}', b'{"heartbeat_interval":1000.0}', b'{"sample_rate":2147483648}', b'{"snappy":1}'],
)
def test_a_body_that_is_not_such_an_object_is_fatal(body):
    with pytest.raises(FatalClientError) as caught:
        decode_identify(body)
    assert caught.value.data == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


@given(st.binary())
def test_any_bytes_are_a_request_or_a_fatal_error(body):
    with contextlib.suppress(FatalClientError):
        assert isinstance(decode_identify(body), IdentifyRequest)


def test_the_response_is_compact_and_in_nsqds_order_and_read_as_it_was_written():
    response = decode_identify_response(RESPONSE)
    assert response.encode() == RESPONSE
    assert (response.max_rdy_count, response.version, response.deflate) == (2500, "1.3.0", True)
    assert response.topology_region == "<r>"


@pytest.mark.parametrize("field", ["client_id", "hostname", "user_agent", "topology_region", "topology_zone"])
def test_a_long_text_is_cut(field):
    body = json.dumps({field: "\u00e9" * 10_000}).encode()
    assert getattr(decode_identify(body), field) == "\u00e9" * 256


@given(st.builds(IdentifyRequest))
def test_a_request_is_read_as_it_was_written(request_):
    assert decode_identify(request_.encode()) == request_


def test_zero_fields_are_not_written():
    assert IdentifyRequest(client_id="c").encode() == b'{"client_id":"c"}'


def test_the_response_ok_has_zero_fields():
    assert decode_identify_response(b"OK").max_rdy_count == 0


@pytest.mark.parametrize(
    "data",
    [b"", b"CLOSE_WAIT", b"[]", b'{"max_rdy_count":"many"}', b"\xff", b'{"max_rdy_count":-1}', b'{"msg_timeout":-1}'],
)
def test_an_invalid_response_is_a_value_error(data):
    with pytest.raises(JsonError):
        decode_identify_response(data)
