"""The manifests in contrib/kubernetes: valid for Kubernetes, consistent with our programs, and with working commands.

There is no cluster. The API's schemas validate the manifests, and the pods' commands run in a sandbox that resolves the
pods' names (`tests.docs.sandbox`).
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from nsq_compat import __version__
from nsq_compat.cli.flags import parse
from nsq_compat.cli.options import table_of
from nsq_compat.nsqadmin.options import NsqadminOptions
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqlookupd.main import NsqlookupdOptions
from nsq_compat.protocol.durations import SECOND
from scripts.release.image import USER
from tests.docs.sandbox import ROOT, run, search_path

FOLDER = ROOT / "contrib" / "kubernetes"
OPTIONS: dict[str, type] = {"nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions, "nsqadmin": NsqadminOptions}
VERSIONS = ("1.32", "1.37")
NAMESPACE = "queue"
STOP_SECONDS = 10

Document = dict[str, Any]


def rendered(folder: Path) -> Iterator[Document]:
    """The output of `kubectl kustomize` for a folder, for the features that we use."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    images = {each["name"]: f"{each['newName']}:{each['newTag']}" for each in kustomization.get("images", ())}
    assert set(kustomization) <= {"apiVersion", "kind", "resources", "images"}
    for name in kustomization["resources"]:
        path = folder / name
        found = rendered(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
        for document in found:
            for container in containers(document):
                container["image"] = images.get(container["image"], container["image"])
            yield document


def containers(document: Document) -> list[Document]:
    if document["kind"] not in ("StatefulSet", "Deployment"):
        return []
    found: list[Document] = document["spec"]["template"]["spec"]["containers"]
    return found


DOCUMENTS = list(rendered(FOLDER / "prometheus-operator"))
WORKLOADS = {each["metadata"]["name"]: each for each in DOCUMENTS if containers(each)}


def of_kind(kind: str) -> list[Document]:
    return [each for each in DOCUMENTS if each["kind"] == kind]


def container_of(name: str) -> Document:
    [container] = containers(WORKLOADS[name])
    return container


def labels_of(name: str) -> Document:
    labels: Document = WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]
    return labels


def substituted(name: str) -> list[str]:
    """The command of a pod's first container; `$(NAME)` is replaced by values of its `env`."""
    container = container_of(name)
    values = {"metadata.name": f"{name}-0", "metadata.namespace": NAMESPACE}
    variables = {each["name"]: values[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container.get("env", ())}
    text = "\n".join(container["command"] + container["args"])
    for variable, value in variables.items():
        text = text.replace(f"$({variable})", value)
    assert "$(" not in text
    return text.split("\n")


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(version):
    assert {each["kind"] for each in DOCUMENTS} == {
        "Deployment", "PodDisruptionBudget", "Service", "ServiceMonitor", "StatefulSet",
    }  # fmt: skip
    for document in DOCUMENTS:
        if document["kind"] != "ServiceMonitor":  # a resource of the Prometheus operator
            kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelled_field_is_detected():
    document = yaml.safe_load(yaml.safe_dump(WORKLOADS["nsqd"]))
    document["spec"]["template"]["spec"]["terminationGracePeriod"] = 330
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


def test_kubectl_renders_the_same_if_it_is_installed():
    theirs = DOCUMENTS
    if kubectl := shutil.which("kubectl"):
        command = [kubectl, "kustomize", str(FOLDER / "prometheus-operator")]
        theirs = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, check=True, timeout=50).stdout))
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in theirs}
    assert by_name == {(each["kind"], each["metadata"]["name"]): each for each in DOCUMENTS}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_pods_flags_and_ports_are_those_of_its_daemon(name):
    program, *words = substituted(name)
    assert program == name
    options = OPTIONS[name](**dict(parse(table_of(OPTIONS[name]), words).given))
    ports = {each["name"]: each["containerPort"] for each in container_of(name)["ports"]}
    addresses = {"tcp": getattr(options, "tcp_address", ""), "http": options.http_address}
    assert ports == {kind: int(address.rpartition(":")[2]) for kind, address in addresses.items() if address}
    for service in of_kind("Service"):
        if service["spec"]["selector"].items() <= labels_of(name).items():
            assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == ports
            assert all(each["targetPort"] == each["name"] for each in service["spec"]["ports"])


def test_the_command_for_mirroring_makes_a_ring_of_all_replicas(tmp_path):
    text = (FOLDER / "base" / "nsqd.yaml").read_text()
    (commented,) = re.findall(r"(^ {10}# command:\n(?:^ {10}#   .*\n)+)", text, re.MULTILINE)
    written = re.sub(r"^ {10}# ", " " * 10, commented, flags=re.MULTILINE)
    stateful_set = next(
        each
        for each in yaml.safe_load_all(text.replace("          command: [nsqd]\n", written))
        if each["kind"] == "StatefulSet"
    )
    kubernetes_validate.validate(stateful_set, VERSIONS[-1], strict=True)
    assert stateful_set["spec"]["replicas"] == 3
    command = stateful_set["spec"]["template"]["spec"]["containers"][0]["command"]
    (tmp_path / "nsqd").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "nsqd").chmod(0o755)
    for number in range(3):
        environment = {"HOSTNAME": f"nsqd-{number}", "PATH": f"{tmp_path}:/usr/bin:/bin"}
        given = subprocess.run(
            [*command, "--data-path=/data"], env=environment, capture_output=True, text=True, check=True, timeout=50
        ).stdout.splitlines()
        options = NsqdOptions(**dict(parse(table_of(NsqdOptions), given).given))
        assert (options.data_path, options.id, options.mirror_accept) == ("/data", number, True)
        assert options.mirror_to == f"nsqd-{(number + 1) % 3}.nsqd:4150"


@pytest.mark.parametrize("name", OPTIONS)
def test_a_pod_has_no_privileges(name):
    pod, container = WORKLOADS[name]["spec"]["template"]["spec"], container_of(name)
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == f"{USER}:{USER}"
    assert pod["securityContext"]["runAsNonRoot"] is container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["image"].endswith(f"/nsq_compat:{__version__}")


def test_nsqd_keeps_its_data_in_a_volume_and_has_time_to_drain():
    stateful, container = WORKLOADS["nsqd"]["spec"], container_of("nsqd")
    pod = stateful["template"]["spec"]
    options = NsqdOptions(**dict(parse(table_of(NsqdOptions), substituted("nsqd")[1:]).given))
    [claim], [mount] = stateful["volumeClaimTemplates"], container["volumeMounts"]
    assert claim["metadata"]["name"] == mount["name"]
    assert mount["mountPath"] == options.data_path
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    assert options.sigterm == "drain"
    assert pod["terminationGracePeriodSeconds"] >= options.drain_timeout / SECOND + STOP_SECONDS


def test_references_between_manifests_exist():
    for each in of_kind("StatefulSet"):
        [service] = [one for one in of_kind("Service") if one["metadata"]["name"] == each["spec"]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
    for each in WORKLOADS.values():
        assert each["spec"]["selector"]["matchLabels"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
    budgets = {
        each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget")
    }
    assert set(budgets) == {each["metadata"]["name"] for each in of_kind("StatefulSet")}
    assert all(labels.items() <= labels_of(name).items() for name, labels in budgets.items())
    directories = [f"nsqlookupd-{number}.nsqlookupd" for number in range(WORKLOADS["nsqlookupd"]["spec"]["replicas"])]
    for name in ("nsqd", "nsqadmin"):
        named = [
            word.partition("=")[2].partition(":")[0] for word in substituted(name) if word.startswith("--lookupd-")
        ]
        assert named == directories


def test_the_operator_scrapes_every_daemon_once():
    [monitor] = of_kind("ServiceMonitor")
    [wanted], [endpoint] = monitor["spec"]["selector"]["matchExpressions"], monitor["spec"]["endpoints"]
    scraped = [each for each in of_kind("Service") if each["metadata"]["labels"][wanted["key"]] in wanted["values"]]
    assert sorted(each["metadata"]["name"] for each in scraped) == sorted(OPTIONS)
    assert all(endpoint["port"] in {port["name"] for port in each["spec"]["ports"]} for each in scraped)
    assert (endpoint["path"], monitor["spec"]["jobLabel"]) == ("/metrics", wanted["key"])


def probes(name: str) -> Iterator[str]:
    container = container_of(name)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if asks := container.get(probe, {}).get("httpGet"):
            yield f"http://127.0.0.1:{ports[asks['port']]}{asks['path']}"


USE = r"""
set -euo pipefail
mkdir /data
{start}
for url in {probes}; do
    until curl --silent --fail --output /dev/null $url; do kill -0 $nsqlookupd $nsqd $nsqadmin; sleep 0.1; done
done
nsqd_http=http://nsqd-0.nsqd.queue.svc:4151
for call in topic/create?topic=orders 'channel/create?topic=orders&channel=archive'; do
    curl --silent --fail -X POST "$nsqd_http/$call"
done
printf 'one\ntwo' | curl --silent --fail --data-binary @- "$nsqd_http/mpub?topic=orders" >/dev/null
lookupd_http=nsqlookupd-0.nsqlookupd:4161
until curl --silent --fail --output /dev/null "http://$lookupd_http/lookup?topic=orders"; do sleep 0.1; done
nsq_tail --topic=orders --channel=archive --n=1 --lookupd-http-address=$lookupd_http 2>/dev/null
{before_stop}
kill -TERM $nsqd
# One message is left, so nsqd still runs under its name.
nsq_tail --topic=orders --channel=archive --n=1 --nsqd-tcp-address=nsqd-0.nsqd.queue.svc:4150 2>/dev/null
wait $nsqd
grep -o 'NSQ: drained$' nsqd.log
kill $nsqlookupd $nsqadmin
wait $nsqlookupd $nsqadmin
echo gone
"""


@pytest.mark.privileged
@pytest.mark.timeout(900)
def test_the_pods_commands_serve_answer_probes_and_drain_before_they_stop(tmp_path):
    starts = [
        f"{shlex.join(substituted(name))} 2>{name}.log &\n{name}=$!" for name in ("nsqlookupd", "nsqd", "nsqadmin")
    ]
    hook = container_of("nsqd")["lifecycle"]["preStop"]["exec"]["command"]
    asked = [url for name in OPTIONS for url in probes(name)]
    script = USE.format(start="\n".join(starts), probes=" ".join(asked), before_stop=shlex.join(hook))
    (tmp_path / "script").write_text(f"cd {tmp_path}; export PATH={search_path(Path(sys.executable).parent)}\n{script}")
    hosts = {
        "nsqlookupd-0.nsqlookupd": "127.0.0.1",
        "nsqlookupd-1.nsqlookupd": "127.0.0.2",
        **{f"{name}-0.{name}.{NAMESPACE}.svc": "127.0.0.1" for name in OPTIONS},
    }
    said = run(["bash", str(tmp_path / "script")], tmp_path, hosts=hosts, addresses=(), timeout=280)
    assert said.split() == ["one", "two", "NSQ:", "drained", "gone"], said
