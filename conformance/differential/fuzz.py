"""``python -m nsq_conformance.differential.fuzz --peer /path/to/nsqd``: find differences between two nsqd.

Prints each difference with its seed and the shortest stream that shows it, reports progress at intervals, and ends with
a summary, also when it is interrupted. The exit status is 1 if there was a difference. A seed always gives the same
stream: --seed N --streams 1 plays one stream alone.
"""

import argparse
import json
import platform
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from nsq_conformance.differential.campaign import Campaign, Counts
from nsq_conformance.differential.comparing import Comparison, Difference
from nsq_conformance.differential.http_client import Unanswered
from nsq_conformance.differential.vocabulary import OPTIONS
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd

_MEMORY: Final = Path("/dev/shm")
"""Data paths in memory, so that the speed of the disk does not matter."""
_LONG_RUN: Final = re.compile(r"(.)\1{19,}")


class Interrupted:
    """Whether a signal has requested the end. A second signal ends the program without waiting for running streams."""

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._set)

    def _set(self, number: int, frame: object) -> None:
        self.is_set = True
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)


class Progress:
    """Prints a line on stderr at intervals."""

    def __init__(self, counts: Callable[[], Counts], total: int, every: float) -> None:
        self._counts, self._total, self._every = counts, total, every
        self._due = time.monotonic() + every

    def show(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            print(f"of {self._total}: {self._counts()}", file=sys.stderr, flush=True)


def fuzz(comparison: Comparison, options: argparse.Namespace, interrupted: Interrupted) -> tuple[Counts, str]:
    """Play the streams; returns the counts, and the reason if it ended early."""

    def tell(seed: int, difference: Difference) -> None:
        print(described(seed, difference), flush=True)

    campaign = Campaign(comparison, options.side_by_side, tell)
    progress = Progress(lambda: campaign.counts, options.streams, options.every)

    def seeds() -> Iterator[int]:
        for seed in range(options.seed, options.seed + options.streams):
            progress.show()
            yield seed

    try:
        campaign.play(seeds(), lambda: not interrupted.is_set)
    except (OSError, Unanswered) as error:
        underway = ", ".join(map(str, sorted(campaign.underway)))
        return campaign.counts, f"an nsqd does not answer ({error!r}) while these streams are played: {underway}"
    return campaign.counts, "interrupted" if interrupted.is_set else ""


def described(seed: int, difference: Difference) -> str:
    acts = "\n".join(f"    {act}" for act in difference.acts)
    text = f"seed {seed}\n{acts}\n  ours    {difference.ours}\n  theirs  {difference.theirs}\n"
    return _LONG_RUN.sub(lambda run: f"{run[1]}*{len(run[0])}", text)


def summary(counts: Counts, options: argparse.Namespace, why: str) -> dict[str, object]:
    """The summary, for JSON."""
    return {
        "nsqd": version(options.nsqd),
        "peer": version(options.peer),
        "python": platform.python_version(),
        "first_seed": options.seed,
        "asked_for": options.streams,
        "streams": counts.streams,
        "acts": counts.acts,
        "connections": counts.connections,
        "seconds": round(counts.seconds, 1),
        "differences": [described(*each) for each in counts.differences],
        "differed_once": [described(*each) for each in counts.once],
        "ended_early": why,
    }


def version(command: str) -> str:
    asking = [*shlex.split(command), "--version"]
    return subprocess.run(asking, capture_output=True, text=True, check=False).stdout.strip()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description="Play the same random conversations on two nsqd.")
    parser.add_argument("--nsqd", default=installed_nsqd(), help="command line of an nsqd (default: %(default)s)")
    parser.add_argument("--peer", required=True, help="command line of the second nsqd")
    parser.add_argument("--streams", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="seed of the first stream; others follow (default: random)")
    parser.add_argument("--side-by-side", type=int, default=250, help="parallel streams (default: %(default)s)")
    parser.add_argument("--every", type=float, default=10.0, help="interval of progress lines in seconds")
    parser.add_argument("--json", type=Path, help="file for the summary")
    parser.add_argument("--echo", action="store_true", help="show errors that the daemons log")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.randrange(1 << 32)
    return options


def main() -> int:
    options = parse_arguments()
    interrupted = Interrupted()
    with ExitStack() as stack:
        nsqds = []
        for command in (options.nsqd, options.peer):
            data_path = stack.enter_context(tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None))
            nsqd = NsqdProcess(command, Path(data_path), options=OPTIONS, log=sys.stderr if options.echo else None)
            nsqds.append(stack.enter_context(nsqd))
            # Otherwise they log thousands of lines a second.
            nsqd.asks("PUT", "/config/log_level", b"error")
        ours, theirs = ((each.tcp_address, each.http_address) for each in nsqds)
        comparison = stack.enter_context(closing(Comparison(ours, theirs)))
        print(f"seeds {options.seed} to {options.seed + options.streams - 1}")
        counts, why = fuzz(comparison, options, interrupted)
        if options.json:
            options.json.write_text(json.dumps(summary(counts, options, why), indent=1) + "\n")
    for seed, difference in counts.once:
        print("once, and not again:", described(seed, difference))
    print(counts, f"{counts.connections} connections, {counts.seconds:.0f} s", sep=", ")
    if why:
        print(why)
    return int(bool(counts.differences) or "answer" in why)


if __name__ == "__main__":
    sys.exit(main())
