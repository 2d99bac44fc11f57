"""The environment in which each page's commands are run, and the blocks that are not run, with the reasons.

A test fails if a block listed here is no longer in its page, or if a block is neither run nor listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Setup:
    """The environment of a page.

    The commands of `before` are run first. `hosts` maps host names to addresses. `addresses` are added to the loopback
    interface. Commands are run in the checkout if `in_checkout`, else in an empty folder. With `bare`, nothing is
    installed yet. With `installs`, pip can install without a network. With `pasted`, each block is run at once, as if
    pasted into a terminal; otherwise the next command waits until a daemon listens.
    """

    before: str = ""
    hosts: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    in_checkout: bool = False
    bare: bool = False
    installs: bool = False
    pasted: bool = False


_ASK: Final = "curl --silent --show-error --fail"

_CALLS: Final = f"""
calls() {{
    for call in "${{@:2}}"; do
        {_ASK} --retry 100 --retry-connrefused --retry-delay 1 -X POST "http://$1/$call"
    done
}}
"""
"""`calls ADDRESS CALL...` sends POST requests, as soon as a daemon listens there."""

GO_DATA_PATH: Final = f"""{_CALLS}
go=/var/lib/nsqd
mkdir -p $go
"$PROGRAMS/nsqd" --data-path=$go 2>/dev/null &
made=$!
calls 127.0.0.1:4151 topic/create?topic=orders 'channel/create?topic=orders&channel=archive' \
    'channel/create?topic=orders&channel=audit' 'channel/pause?topic=orders&channel=archive'
printf 'order 1\norder 2\norder 3' | {_ASK} --data-binary @- 'http://127.0.0.1:4151/mpub?topic=orders'
kill $made
wait $made
"$PROGRAMS/nsq_data" export --data-path=$go
rm -r $go/nsq_compat*
"""
"""A data path as Go's nsqd leaves it."""

CLUSTER: Final = f"""{_CALLS}
nsqlookupd 2>/dev/null &
mkdir data
nsqd --data-path=data --lookupd-tcp-address=127.0.0.1:4160 --broadcast-address=127.0.0.1 2>/dev/null &
make_channels() {{
    calls 127.0.0.1:4151 "topic/create?topic=$1" $(printf "channel/create?topic=$1&channel=%s\n" "${{@:2}}")
    seq 1 20 | {_ASK} --data-binary @- "http://127.0.0.1:4151/mpub?topic=$1"
}}
"""
"""nsqlookupd and nsqd; `make_channels topic channel...` makes them, with twenty messages."""
CLIENTS: Final = f"{CLUSTER}make_channels orders archive later by-hand pynsq once"

SETUPS: Final[Mapping[str, Setup]] = {
    "README.md": Setup(in_checkout=True, bare=True, installs=True, pasted=True),
    "docs/migration.md": Setup(
        f"""{GO_DATA_PATH}
cat >/etc/nsqd.cfg <<'END'
data_path = "/var/lib/nsqd"
broadcast_address = "nsqd-1"
nsqlookupd_tcp_addresses = ["lookup-1:4160"]
END""",
        hosts={"lookup-1": "127.0.0.1", "nsqd-1": "127.0.0.1"},
    ),
    "docs/client.md": Setup(CLIENTS),
    "docs/coming-from-pynsq.md": Setup(CLIENTS),
    "docs/dedupe.md": Setup(CLIENTS),
    "docs/nsqadmin.md": Setup(CLUSTER),
    "docs/headers.md": Setup(),
    "docs/mirroring.md": Setup(hosts={"primary": "127.0.0.1", "standby": "127.0.0.2"}),
    "docs/operations.md": Setup(
        """
python -m trustme --quiet --dir /tmp && cp /tmp/server.pem nsqd.crt && cp /tmp/server.key nsqd.key
mkdir -p /var/lib/nsqd
nsqd --data-path=/var/lib/nsqd &
kept=$!
""",
        hosts={"nsqd": "127.0.0.1", "one": "127.0.0.1", "two": "127.0.0.2"},
        in_checkout=True,
        installs=True,
    ),
    "docs/spark.md": Setup(
        f"""{CLUSTER}make_channels events spark
mkdir -p /shared/nsq-spool
python - <<'END'
from pyspark_nsq.drain import drain
from pyspark_nsq.options import read_options
from pyspark_nsq.rows import Origin
from pyspark_nsq.spool import Spool
reading = {{"subscribe": "events", "channel": "spark", "nsqdTcpAddresses": "127.0.0.1:4150"}}
options = read_options({{**reading, "spoolDir": "/shared/nsq-spool"}}, "stream")
spool = Spool("/shared/nsq-spool", "STREAM")
spool.create()
drain(spool, spool.partition(1, 0), Origin("events", "spark", "127.0.0.1:4150"), 5, options)
END""",
        addresses=("10.0.0.7",),
    ),
    "docs/utilities.md": Setup(
        f"{CLUSTER}make_channels numbers archive pulled; make_channels orders nsq_to_file\n"
        "make_channels payments ledger; make_channels payments.ledger.dead redrive",
        hosts={"one": "127.0.0.1", "two": "127.0.0.1"},
        addresses=("10.0.0.2",),
    ),
    "conformance/README.md": Setup(in_checkout=True, bare=True, installs=True, pasted=True),
    "contrib/README.md": Setup(in_checkout=True, installs=True),
    "docs/runbook.md": Setup(
        f"""{_CALLS}
nsqlookupd 2>/dev/null &
for node in 1 2; do
    mkdir -p /var/lib/nsqd-$node
    mount -t tmpfs -o size=8m tmpfs /var/lib/nsqd-$node
    nsqd --data-path=/var/lib/nsqd-$node --broadcast-address=nsqd-$node --lookupd-tcp-address=lookup-1:4160 \
        --tcp-address=nsqd-$node:4150 --http-address=nsqd-$node:4151 2>/dev/null &
done
lost=$!
ln -s /var/lib/nsqd-1 /var/lib/nsqd
for node in 1 2; do
    calls nsqd-$node:4151 topic/create?topic=orders 'channel/create?topic=orders&channel=archive' \
        'channel/create?topic=orders&channel=audit' 'channel/pause?topic=orders&channel=audit'
    printf 'order 1\norder 2\norder 3' | {_ASK} --data-binary @- "http://nsqd-$node:4151/mpub?topic=orders"
done
cat >slow.py <<'END'
import time
import nsq_compat.client as nsq
nsq.Consumer("orders", "archive", lambda message: time.sleep(3600), nsqd_tcp_addresses="nsqd-1:4150").run()
END
python slow.py &
kill -9 $lost
mkdir -p /var/lib/nsqd/nsq_compat/imported/1
head -c 20M /dev/zero >/var/lib/nsqd/nsq_compat/imported/1/large || true
while head -c 5000 /dev/zero | {_ASK} --data-binary @- 'http://nsqd-1:4151/pub?topic=more'; do true; done""",
        hosts={"lookup-1": "127.0.0.1", "nsqd-1": "127.0.0.1", "nsqd-2": "127.0.0.2"},
    ),
}

NOT_RUN: Final[Mapping[tuple[str, str], str]] = {
    ("README.md", "scripts/run"): "conformance/test_demo.py runs it",
    ("README.md", "scripts/test"): "it runs this test",
    ("benchmarks/README.md", "```sh"): "minutes each, on an idle machine, with tools from the package index",
    (
        "conformance/README.md",
        "# this project's nsqd",
    ): "minutes each, and another nsqd; scripts/test runs pytest conformance",
    (
        "conformance/README.md",
        '.venv/bin/python -m nsq_conformance.differential.fuzz --peer "/path/to/nsqd" --streams 25000 --seed 1',
    ): "minutes, and another nsqd; conformance/test_differential.py plays some",
    (
        "conformance/README.md",
        'conformance/run --nsqd "env PYTHONPATH=$PWD .venv/bin/python -m tests.mutants.broken_wire'
        ' one_fin_in_50_is_swallowed /path/to/nsqd"',
    ): "minutes, and another nsqd; tests/mutants does the same",
    ("contrib/README.md", "docker load --input nsq_compat-0.1.0.linux-amd64.oci.tar"): (
        "no Docker; tests/packaging/test_image.py runs the image with crun"
    ),
    (
        "contrib/README.md",
        "helm install nsq contrib/helm/nsq --namespace queue --set image.repository=registry.example.com/nsq_compat",
    ): ("no cluster; tests/packaging/test_kubernetes.py renders the chart"),
    ("docs/client.md", "from contextlib import asynccontextmanager"): (
        "FastAPI is not a dependency; tests/client/test_docs.py compiles it"
    ),
    ("docs/benchmarks.md", "make bench PEER=/path/to/nsqd"): "minutes, and Go's nsqd",
    ("docs/operations.md", "```bash"): (
        "no systemd; tests/nsqd/test_systemd.py and tests/tools/test_nsq_nodes.py start the daemons as the units do"
    ),
    ("docs/spark.md", "```python"): "tests/spark/session does the same in a real session",
    ("docs/spark-jobs.md", "```bash"): "tests/spark/session/test_jobs.py runs each job with its flags",
}
"""Keys are the page and the first line of a block, or the page and a language for all its blocks of that language."""
