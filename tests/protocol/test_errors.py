import pytest

from nsq_compat.protocol import errors
from nsq_compat.protocol.errors import E_BAD_PROTOCOL, E_INVALID, ClientError, FatalClientError, NsqError


def test_the_data_of_an_error_is_its_code_a_space_and_its_description():
    assert NsqError(E_INVALID, "cannot SUB in current state").data == b"E_INVALID cannot SUB in current state"


def test_an_error_without_description_is_the_code_alone():
    assert FatalClientError(E_BAD_PROTOCOL).data == b"E_BAD_PROTOCOL"


def test_a_description_that_ends_in_a_space_keeps_it():
    assert FatalClientError(E_INVALID, b"invalid command ").data == b"E_INVALID invalid command "


def test_what_a_client_sent_is_echoed_byte_for_byte():
    every_byte = bytes(range(256))
    assert FatalClientError(E_INVALID, b"invalid command " + every_byte).data.endswith(every_byte)


def test_an_error_can_be_logged_whatever_the_client_sent():
    assert str(FatalClientError(E_INVALID, b"invalid command \xff")) == r"E_INVALID invalid command \xff"


@pytest.mark.parametrize("kind", [ClientError, FatalClientError])
def test_every_error_with_a_code_can_be_caught_as_one(kind):
    with pytest.raises(NsqError):
        raise kind(E_INVALID)


def test_every_code_is_spelled_as_its_constant():
    codes = {name: value for name, value in vars(errors).items() if name.startswith("E_")}
    assert len(codes) == 18
    assert all(name == value for name, value in codes.items())
