"""What nsqd is asked to reach beside Go's, scenario by scenario, and why it has not where it has not.

The ratios themselves are measured with every run; the sentences are written by hand, shown only where a run says that
the aim is not reached, and belong to be read again when they are shown beside another figure.
"""

from benchmarks.scenarios import Aim


def _each(row: str, floor: float, aim: float, **why: str) -> dict[str, Aim]:
    """One line of the table for several scenarios, each with its sentence. Hyphens of names are underscores here."""
    return {name.replace("_", "-"): Aim(row, floor, aim, sentence) for name, sentence in why.items()}


def _p99(row: str, floor: float, aim: float, **why: str) -> dict[str, Aim]:
    return {
        name.replace("_", "-"): Aim(row, floor, aim, sentence, figures=("p99",), less_is_better=True)
        for name, sentence in why.items()
    }


AIMS: dict[str, Aim] = {
    **_each("MPUB 200 x 200 B", 1.2, 2.5, mpub_200x200=""),
    **_each("MPUB 10 x 200 B", 0.9, 1.5, mpub_10x200=""),
    **_each("deliver + FIN, RDY 2,500", 2, 4, deliver_fin_rdy2500=""),
    **_each("publish while consuming", 2, 4, publish_while_consuming=""),
    **_each("fan-out to 10 channels", 3, 6, fanout_10=""),
    **_each("PUB synchronous, 1 connection", 0.9, 1.2, pub_sync_1=""),
    **_each("PUB synchronous, 10 and 100 connections", 0.7, 1.0, pub_sync_10="", pub_sync_100=""),
    **_each("PUB pipelined", 2, 4, pub_pipelined=""),
    **_each("RDY 1 ping-pong", 0.7, 1.0, rdy1_pingpong=""),
    **_each("HTTP /pub keep-alive, 10 connections", 1.0, 1.5, http_pub=""),
    **_each("HTTP /mpub", 1.0, 1.5, http_mpub=""),
    **_p99("p99 latency at 1 k/s and 10 k/s", 0.7, 0.2, latency_1k="", latency_10k=""),
    **_p99(
        "p99 latency with RDY > 1 and output buffering on", 0.1, 0.02, latency_1k_buffered="", latency_10k_buffered=""
    ),
    **_each("publish and drain through disk, default mem-queue-size", 2, 5, mpub_to_disk="", drain_from_disk=""),
    **_each(
        "TLS, snappy, deflate, both ways",
        1.0,
        1.5,
        mpub_200x200_tls="",
        pub_pipelined_tls="",
        pub_sync_10_tls="",
        deliver_fin_rdy2500_tls="",
        mpub_200x200_snappy="",
        pub_pipelined_snappy="",
        deliver_fin_rdy2500_snappy="",
        mpub_200x200_deflate="",
        pub_pipelined_deflate="",
        deliver_fin_rdy2500_deflate="",
    ),
    "idle-10000": Aim("memory per idle connection", 1.0, 0.5, figures=("idle_connection_bytes",), less_is_better=True),
}
