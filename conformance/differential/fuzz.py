"""``python -m conformance.differential.fuzz --peer /path/to/nsqd``: two nsqd, the same streams, what differs.

Prints each difference with its seed and the shortest stream that shows it; exits with 1 if there was any.
"""

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from conformance.differential.comparing import Comparison, Difference
from conformance.differential.playing import Nsqd, topic_names
from conformance.differential.streams import OPTIONS, stream
from conformance.nsqd_process import NsqdProcess, installed_nsqd

CHUNK = 20
_LONG_RUN = re.compile(r"(.)\1{19,}")


@dataclass(frozen=True, slots=True)
class Job:
    """Some seeds, for a process of its own."""

    number: int
    seeds: Sequence[int]
    ours: Nsqd
    theirs: Nsqd


def run(job: Job) -> list[tuple[int, Difference]]:
    # Names for as many plays as shortening may take.
    comparison = Comparison(job.ours, job.theirs, islice(topic_names(), job.number * 50_000, None))
    found = []
    for seed in job.seeds:
        difference = comparison.differs(stream(seed))
        if difference is not None:
            found.append((seed, comparison.shortest(difference)))
    return found


def fuzz(ours: Nsqd, theirs: Nsqd, first: int, count: int, workers: int) -> list[tuple[int, Difference]]:
    """The differences of `count` streams from the seed `first` on, printed as they are found."""
    seeds = range(first, first + count)
    jobs = [Job(number, seeds[at : at + CHUNK], ours, theirs) for number, at in enumerate(range(0, count, CHUNK))]
    found: list[tuple[int, Difference]] = []
    began = time.monotonic()
    with ProcessPoolExecutor(workers) as pool:
        for done, finished in enumerate(as_completed([pool.submit(run, job) for job in jobs]), 1):
            for seed, difference in finished.result():
                found.append((seed, difference))
                print(described(seed, difference), flush=True)
            if sys.stderr.isatty() or done == len(jobs):
                rate = min(count, done * CHUNK) / (time.monotonic() - began)
                print(f"{min(count, done * CHUNK)} streams, {len(found)} differ, {rate:.0f}/s", file=sys.stderr)
    return found


def described(seed: int, difference: Difference) -> str:
    acts = "\n".join(f"    {act}" for act in difference.acts)
    text = f"seed {seed}\n{acts}\n  ours    {difference.ours}\n  theirs  {difference.theirs}\n"
    return _LONG_RUN.sub(lambda run: f"{run[1]}*{len(run[0])}", text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description="Play the same random conversations on two nsqd.")
    parser.add_argument("--nsqd", default=installed_nsqd(), help="command line of the one (default: %(default)s)")
    parser.add_argument("--peer", required=True, help="command line of the other")
    parser.add_argument("--streams", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the first stream; the next ones follow (default: random)")
    parser.add_argument("--workers", type=int, default=2, help="processes that play (default: %(default)s)")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    print(f"seeds {seed} to {seed + arguments.streams - 1}")
    with (
        tempfile.TemporaryDirectory() as data_path,
        tempfile.TemporaryDirectory() as peers_data_path,
        NsqdProcess(arguments.nsqd, Path(data_path), options=OPTIONS) as ours,
        NsqdProcess(arguments.peer, Path(peers_data_path), options=OPTIONS) as theirs,
    ):
        one, other = (Nsqd(each.tcp_address, each.http_address) for each in (ours, theirs))
        found = fuzz(one, other, seed, arguments.streams, arguments.workers)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
