"""The container file: its content, and its steps run without a container engine.

The image itself is not built. The commands of its first stage run in a sandbox (`tests.docs.sandbox`), without the
compiling, which takes minutes. Then its command runs as its user, on a read-only root with a writable /data.
"""

import glob
import json
import sys
from pathlib import Path

import pytest

from nsq_compat import __version__
from nsq_compat.cli.flags import parse
from nsq_compat.cli.options import table_of
from nsq_compat.nsqadmin.options import NsqadminOptions
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqlookupd.main import NsqlookupdOptions
from tests.docs.sandbox import run
from tests.packaging.image import CONTAINER, Image

# The first test builds the wheel.
pytestmark = pytest.mark.timeout(900)

PORTS = {"4150", "4151", "4160", "4161", "4171"}


@pytest.fixture
def image() -> Image:
    return Image()


def test_the_container_is_not_root_keeps_data_in_a_volume_and_has_a_health_check(image):
    user, _, group = image.only("USER").partition(":")
    assert min(int(user), int(group)) >= 10000
    assert image.only("VOLUME") == "/data"
    assert "--data-path=/data" in image.command
    assert any("/livez" in value for value in image.environment.values())
    assert "HEALTH" in " ".join(image.health_check)
    assert image.only("STOPSIGNAL") == "SIGTERM"


def test_the_base_image_is_pinned_and_fits_the_build_image(image):
    building, base = image.bases
    assert building == base.replace("-slim", "")  # the slim image has no C compiler
    name, _, tag = base.rpartition(":")
    assert name == "docker.io/library/python"
    assert tag.partition("-")[0].count(".") == 2
    assert image.labels["org.opencontainers.image.base.name"] == base
    assert image.labels["org.opencontainers.image.version"] == __version__


def test_ports_and_flags_are_those_of_the_programs(image):
    program, *words = image.command
    assert program == "nsqd"
    parse(table_of(NsqdOptions), words)
    options = (NsqdOptions(), NsqlookupdOptions(), NsqadminOptions())
    addresses = [getattr(each, name, "") for each in options for name in ("tcp_address", "http_address")]
    assert {address.rpartition(":")[2] for address in addresses if address} == PORTS
    assert set(image.only("EXPOSE").split()) == PORTS


def test_copied_files_exist_and_the_build_context_has_nothing_else(image, release):
    tree = release.wheel.parents[1]
    for source in image.sources():
        assert glob.glob(str(tree / source)), source
    nothing, *kept = (CONTAINER / "Containerfile.dockerignore").read_text().split()
    assert nothing == "*"
    assert kept == [f"!{source}" for source in image.sources()]


START = r"""
mount -t tmpfs -o mode=0700,uid=10001,gid=10001 tmpfs /data
mount --bind / /mnt && mount -o remount,ro,bind /mnt
cd /mnt
for each in /data /dev /proc; do mount --rbind $each /mnt$each; done
exec chroot /mnt setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
    env --ignore-environment "${ENVIRONMENT[@]}" bash -c "$use"
"""
USE = r"""
set -euo pipefail
cd /data
health() { "${HEALTH_CHECK[@]}" 2>/dev/null; }
! touch /opt/nsq_compat/bin/something /tmp/something /etc/something 2>/dev/null
"${COMMAND[@]}" --sigterm=drain 2>/data/log &
nsqd=$!
until health; do kill -0 $nsqd; done
python3 - <<'END'
from nsq_compat.client import Producer
with Producer("127.0.0.1:4150") as producer:
    producer.publish_many("orders", [b"one", b"two"])
END
nsq_tail --topic=orders --channel=archive --n=1 --nsqd-tcp-address=127.0.0.1:4150 2>/dev/null
kill $nsqd
nsq_tail --topic=orders --channel=archive --n=1 --nsqd-tcp-address=127.0.0.1:4150 2>/dev/null
wait $nsqd
! health
grep -o 'NSQ: drained$' /data/log
id --user
"""


@pytest.mark.privileged
def test_its_steps_build_an_nsqd_that_serves_without_privileges_on_a_read_only_root(image, release, tmp_path):
    offline = " ".join(f"{name}='{value}'" for name, value in release.offline.items())
    tree = str(release.wheel.parents[1])
    environment = " ".join(f"'{name}={value}'" for name, value in image.environment.items())
    lists = {"COMMAND": image.command, "HEALTH_CHECK": image.health_check}
    script = "\n".join([
        "set -euo pipefail",
        f"export {offline}",
        f"export PATH={sys.base_prefix}/bin:$PATH",
        # The local Python may be in a folder that only root can read; an image has it in /usr/local.
        f"for each in {sys.base_prefix} {Path(sys.base_prefix).parents[0]}; do",
        "    while [ $each != / ]; do chmod a+rx $each; each=$(dirname $each); done",
        "done",
        *image.script(tree),
        f"ENVIRONMENT=({environment})",
        "read -r -d '' use <<'THE_END' || true",
        *(f"{name}=({' '.join(json.dumps(word) for word in words)})" for name, words in lists.items()),
        USE,
        "THE_END",
        START,
    ])  # fmt: skip
    (tmp_path / "script").write_text(script)
    said = run(["bash", str(tmp_path / "script")], tmp_path, hosts={}, addresses=(), timeout=280)
    assert said.split("\n")[-5:] == ["one", "two", "NSQ: drained", "10001", ""], said
