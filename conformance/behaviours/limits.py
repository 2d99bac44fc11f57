"""Options of the tested nsqd, with limits that tests can reach.

A running nsqd, given by its address, has other limits, so the tests of limits are left out there.
"""

from collections.abc import Callable
from typing import Final

from nsq_conformance.raw_client import RawClient

MSG_TIMEOUT_MS = 60_000
MAX_MSG_TIMEOUT_MS = 120_000
OPTIONS = (
    "--max-msg-size=2000",
    "--max-body-size=6000",
    "--max-rdy-count=50",
    "--max-req-timeout=30s",
    f"--msg-timeout={MSG_TIMEOUT_MS}ms",
    f"--max-msg-timeout={MAX_MSG_TIMEOUT_MS}ms",
    "--max-heartbeat-interval=2m",
    "--max-channel-consumers=2",
    # Due messages are delivered as early as possible; all channels are scanned each time.
    "--output-buffer-timeout=25ms",
    "--queue-scan-selection-count=1000",
)

Connect = Callable[..., RawClient]

LIMITS: Final = frozenset(
    {
        "test_a_consumer_is_refused_and_closed[RDY above the limit]",
        "test_a_heartbeat_interval_that_is_granted[120000]",
        "test_a_third_consumer_of_two_is_refused",
        "test_an_mpub_that_is_refused_publishes_nothing",
        "test_an_option_is_shown[a size]",
        "test_an_option_is_shown[a time, in nanoseconds]",
        "test_info_has_the_maximum_heartbeat_interval",
        "test_rdy_may_equal_the_limit",
        "test_refused[a binary mpub of too many messages]",
        "test_refused[a binary mpub with a message too big]",
        "test_refused[a pub deferred for too long]",
        "test_refused[a pub of too many bytes]",
        "test_refused[an mpub of too many bytes]",
        "test_refused[an mpub with a line too long]",
        "test_refused_and_closed[DPUB of too many bytes]",
        "test_refused_and_closed[DPUB with too long a delay]",
        "test_refused_and_closed[IDENTIFY of too many bytes]",
        "test_refused_and_closed[MPUB of more messages than fit]",
        "test_refused_and_closed[MPUB of too many bytes]",
        "test_refused_and_closed[MPUB with a message that is too big]",
        "test_refused_and_closed[PUB of too many bytes]",
        "test_the_answer_contains[max_msg_timeout]",
        "test_the_answer_contains[max_rdy_count]",
        "test_the_answer_contains[output_buffer_timeout]",
        "test_the_limit_of_consumers_is_per_channel",
        "test_the_maximum_delay_is_accepted",
        "test_the_longest_line_is_16384_bytes_with_its_newline",
        "test_a_requested_value_is_granted[output_buffer_timeout-0-25]",
        "test_a_requested_value_is_refused[msg_timeout-120001-msg timeout (120001) is invalid]",
    }
)
"""The tests, and cases of tests, of these limits."""
