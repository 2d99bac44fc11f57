"""Values for streams: low limits, valid and invalid names and numbers."""

from typing import Final

from nsq_conformance.differential.acts import TOPIC

MAX_MSG_SIZE: Final = 2000
MAX_BODY_SIZE: Final = 6000
MAX_RDY: Final = 50
MAX_DELAY_MS: Final = 3_600_000
"""Longer than a stream takes on a busy machine, so that deferred messages are visible in /stats only."""
OPTIONS: Final = (
    f"--max-msg-size={MAX_MSG_SIZE}",
    f"--max-body-size={MAX_BODY_SIZE}",
    f"--max-rdy-count={MAX_RDY}",
    f"--max-req-timeout={MAX_DELAY_MS}ms",
    "--msg-timeout=5m",
    "--max-msg-timeout=5m",
    "--max-heartbeat-interval=2m",
    "--output-buffer-timeout=25ms",
)
"""Options of both nsqd, with limits that a stream of some kilobytes can reach."""

TOPICS: Final = (TOPIC + b".a", TOPIC + b".b", TOPIC + b".c#ephemeral")
CHANNELS: Final = (b"c", b"d", b"e#ephemeral")
BAD_NAMES: Final = (
    b"",
    b"a$b",
    b"#ephemeral",
    TOPIC + b"#ephemeralx",
    TOPIC * 13,
    b"\xff",
    b"a\x00",
    b"\xc3\xa9",
    b'"',
    b"\t",
)
NUMBERS: Final = (
    b"0",
    b"1",
    b"2",
    b"007",
    b"",
    b"49",
    b"50",
    b"51",
    b"3600000",
    b"3600001",
    b"-1",
    b"+1",
    b"1.5",
    b"1e3",
    b"x",
    b"0x1",
)
BAD_DELAYS: Final = (b"3600001", b"-1", b"+1", b"1.5", b"1e3", b"x", b"0x1")
"""Invalid delays. Short valid ones are left out, because their deliveries would race with the stream."""

EDGES: Final[tuple[object, ...]] = (
    None, True, 0, 1, -1, -2, 63, 64, 99, 100, 999, 1000, 16384, 65536, 65537, 60000, 120000, 120001, 300000, 300001,
    1.5, 1e3, "1000", "", [], {}, 2**31, 2**63,
)  # fmt: skip
INTEGERS: Final = (
    "heartbeat_interval", "output_buffer_size", "output_buffer_timeout", "sample_rate", "msg_timeout", "deflate_level",
)  # fmt: skip
TEXTS: Final = ("client_id", "hostname", "user_agent", "topology_zone", "topology_region", "short_id", "long_id")
DOCUMENTS: Final = (
    b"",
    b"null",
    b"[]",
    b"1",
    b'""',
    b"{",
    b"{}",
    b"{}x",
    b" {} ",
    b'{"client_id":"\xff"}',
    b'{"CLIENT_ID":"x"}',
    b"\x00",
)
