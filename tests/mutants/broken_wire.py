"""A wire with a fault, between the tests and any nsqd: ``python -m tests.mutants.broken_wire FAULT nsqd --options``."""

import json
import re
import struct
import sys
import time
from collections.abc import Callable

from tests.mutants.wire import Fault, Passing, Proxy

# --- Replacements -----------------------------------------------------------------------------------------------------


def swallowed(_: Passing) -> bytes:
    return b""


def doubled(passing: Passing) -> bytes:
    return passing.unit * 2


def behind_the_next(passing: Passing) -> bytes:
    """Swap with the next, if that was read at once."""
    return passing.following.pop(0)[1] + passing.unit if passing.following else passing.unit


def answered_without_nsqd(passing: Passing) -> bytes:
    passing.answer(struct.pack(">ii", 6, 0) + b"OK")
    return b""


def late(passing: Passing) -> bytes:
    time.sleep(1)
    return passing.unit


def cut_short(passing: Passing) -> bytes:
    return passing.unit[:-1]


def byte_changed(position: int) -> Callable[[Passing], bytes]:
    """Flip the lowest bit of the byte at a position, which may count from the end."""

    def change(passing: Passing) -> bytes:
        changed = bytearray(passing.unit)
        changed[position] ^= 1
        return bytes(changed)

    return change


def replaced(pattern: bytes, by: bytes) -> Callable[[Passing], bytes]:
    return lambda passing: re.sub(pattern, by, passing.unit, count=1)


def without_its_last_message(passing: Passing) -> bytes:
    """An MPUB of one message less."""
    line, _, body = passing.unit.partition(b"\n")
    (count,) = struct.unpack_from(">i", body, 4)
    messages, rest = [], body[8:]
    for _ in range(count):
        (size,) = struct.unpack_from(">i", rest)
        messages.append(rest[: 4 + size])
        rest = rest[4 + size :]
    batch = struct.pack(">i", count - 1) + b"".join(messages[:-1])
    return line + b"\n" + struct.pack(">i", len(batch)) + batch


def saying(**values: object) -> Callable[[Passing], bytes]:
    """An answer to IDENTIFY with other values."""

    def change(passing: Passing) -> bytes:
        document = json.dumps(json.loads(passing.unit[8:]) | values, separators=(",", ":")).encode()
        return struct.pack(">ii", 4 + len(document), 0) + document

    return change


def other_statuses(passing: Passing) -> bytes:
    return passing.unit.replace(b" 200 OK", b" 202 OK", 1)


def half(passing: Passing) -> bytes:
    return passing.unit[: len(passing.unit) // 2]


def answered_over_http(passing: Passing) -> bytes:
    passing.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")
    raise ConnectionAbortedError


# --- Faults -----------------------------------------------------------------------------------------------------------

PUBLISH = "test_accounting.py::test_each_publish_is_answered_and_arrives_once_in_order"
PIPELINED = "test_accounting.py::test_each_pipelined_publish_is_answered_and_arrives_once"
MPUB = "test_accounting.py::test_each_message_of_each_mpub_arrives_once"
HTTP = "test_accounting.py::test_each_request_over_http_is_answered_and_its_messages_arrive_once"
FINISH = "test_accounting.py::test_each_finish_counts"
REQUEUE = "test_accounting.py::test_each_requeue_counts_and_each_message_comes_back_unchanged"
TOUCH = "test_accounting.py::test_each_touch_counts"
REFUSED = "test_accounting.py::test_each_answer_to_no_message_in_flight_is_refused_in_order"
CHANNELS = "test_accounting.py::test_each_message_is_the_same_in_both_channels"
READY = "test_accounting.py::test_each_rdy_takes_effect"
COME_AND_GO = "test_accounting.py::test_consumers_that_come_and_go_leave_nothing_behind"
DEFERRED = "test_deferral.py::test_none_of_many_deferred_messages_is_early"
DEFERRED_AGAIN = "test_deferral.py::test_none_of_many_requeued_messages_is_early"
INTERVAL = "test_heartbeats.py::test_heartbeats_are_sent_once_per_interval"
ANSWERING = "test_heartbeats.py::test_a_client_that_answers_heartbeats_stays"
ANSWER = "test_identify.py::test_the_answer_contains"

FAULTS = {
    # Commands.
    "one_fin_in_50_is_swallowed": Fault("FIN", 50, swallowed, FINISH),
    "one_fin_in_50_names_another_message": Fault("FIN", 50, byte_changed(4), FINISH),
    "one_req_in_50_is_swallowed": Fault("REQ", 50, swallowed, REQUEUE),
    "one_req_in_50_forgets_its_delay": Fault("REQ", 50, replaced(rb" \d+\n", b" 0\n"), DEFERRED_AGAIN),
    "one_touch_in_50_is_swallowed": Fault("TOUCH", 50, swallowed, TOUCH),
    "one_rdy_in_50_is_swallowed": Fault("RDY", 50, swallowed, READY),
    "one_pub_in_50_is_answered_without_nsqd": Fault("PUB", 50, answered_without_nsqd, PUBLISH),
    "one_pub_in_50_is_sent_twice": Fault("PUB", 50, doubled, PUBLISH),
    "one_pub_in_50_loses_a_bit": Fault("PUB", 50, byte_changed(-1), PIPELINED),
    "two_pubs_in_50_change_places": Fault("PUB", 50, behind_the_next, PIPELINED),
    "one_mpub_in_20_loses_a_message": Fault("MPUB", 20, without_its_last_message, MPUB),
    "one_mpub_in_20_is_answered_without_nsqd": Fault("MPUB", 20, answered_without_nsqd, MPUB),
    "one_dpub_in_50_forgets_its_delay": Fault("DPUB", 50, replaced(rb" \d+\n", b" 0\n"), DEFERRED),
    "one_cls_in_20_is_swallowed": Fault("CLS", 20, swallowed, COME_AND_GO),
    "one_sub_in_20_is_for_another_channel": Fault("SUB", 20, replaced(rb"\n", b"x\n"), COME_AND_GO),
    "nops_are_swallowed": Fault("NOP", 1, swallowed, ANSWERING),
    "an_identify_loses_its_heartbeats": Fault("IDENTIFY", 1, replaced(b"heartbeat", b"hardbeat_"), INTERVAL),
    "an_identify_loses_its_timeout": Fault(
        "IDENTIFY",
        1,
        replaced(b"msg_timeout", b"msg_timein_"),
        "test_timeouts.py::test_a_client_may_request_a_longer_timeout",
    ),
    # Frames.
    "one_ok_in_100_is_swallowed": Fault("OK", 100, swallowed, PUBLISH),
    "one_ok_in_100_is_doubled": Fault("OK", 100, doubled, PUBLISH),
    "one_message_in_50_is_swallowed": Fault("message", 50, swallowed, PUBLISH),
    "one_message_in_50_is_doubled": Fault("message", 50, doubled, PUBLISH),
    "two_messages_in_47_change_places": Fault("message", 47, behind_the_next, PIPELINED),
    "one_message_in_47_has_another_time": Fault("message", 47, byte_changed(15), CHANNELS),
    "one_message_in_50_has_another_attempt": Fault("message", 50, byte_changed(17), PUBLISH),
    "one_message_in_50_has_another_id": Fault("message", 50, byte_changed(33), FINISH),
    "one_message_in_50_loses_a_bit": Fault("message", 50, byte_changed(-1), PIPELINED),
    "two_errors_in_50_change_places": Fault("error", 50, behind_the_next, REFUSED),
    "one_error_in_50_is_swallowed": Fault("error", 50, swallowed, REFUSED),
    "one_error_in_50_is_a_response": Fault("error", 50, byte_changed(7), REFUSED),
    "one_close_wait_in_20_is_swallowed": Fault("response", 20, swallowed, COME_AND_GO),
    "heartbeats_are_late": Fault(
        "heartbeat", 1, late, "test_heartbeats.py::test_the_first_heartbeat_is_sent_one_interval_after_identify"
    ),
    "one_heartbeat_in_2_is_swallowed": Fault("heartbeat", 2, swallowed, INTERVAL),
    "tls_is_said_to_be_granted": Fault("identify", 1, saying(tls_v1=True), f"{ANSWER}[tls_v1]"),
    "deflate_is_said_to_be_refused": Fault(
        "identify", 1, saying(deflate=False), "test_identify.py::test_the_level_of_deflate_has_a_limit"
    ),
    "another_timeout_is_said_to_be_granted": Fault("identify", 1, saying(msg_timeout=60_001), f"{ANSWER}[msg_timeout]"),
    # HTTP.
    "one_pub_over_http_in_20_is_answered_without_nsqd": Fault("/pub", 20, answered_over_http, HTTP),
    "one_mpub_over_http_in_20_loses_a_bit": Fault("/mpub", 20, byte_changed(-1), HTTP),
    "one_answer_over_http_in_20_is_truncated": Fault("answer", 20, half, HTTP),
    "one_answer_over_http_in_20_has_another_status": Fault("answer", 20, other_statuses, HTTP),
}
NO_FAULT = "no_fault"


def main() -> int:
    """Run ``program FAULT nsqd --options``."""
    fault, *command = sys.argv[1:]
    return Proxy(None if fault == NO_FAULT else FAULTS[fault], command).run()


if __name__ == "__main__":
    sys.exit(main())
