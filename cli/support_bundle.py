"""`quire support-bundle`: writes one file with the state of a cluster, for troubleshooting.

    members/KIND-NAME/settings.json, security.json    without secrets
                     stacks.txt, log.txt, metrics.txt
    cluster/…json    brokers, bookies, bundles, repair, lost entries, the archive
    topics/….json    stats of the topics given with --topic
    doctor.json      findings of `quire doctor`
    missing.txt      parts that could not be obtained, and why

The file contains no secrets, because each process redacts its secrets before it responds (`runtime/redaction`). It does
contain names of topics, tenants, roles and machines. If the cluster does not respond, the file still contains the log
files given with --log.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from quire.cli.cluster_checks import LOST, OVERVIEW, Looked, asked_of_all, look_at_cluster
from quire.cli.connection_options import connection_options
from quire.cli.noun import admin_url_option, json_option
from quire.cli.output import done, size
from quire.runtime.credentials import Credentials
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.machine import Machine
from quire.runtime.member import SUPPORT
from quire.runtime.redaction import without_secrets
from quire.runtime.rest import Admin
from quire.runtime.tls import ClientTls
from quire.wire import topic_name

ASK_S: Final = 60.0
LOG_BYTES_MAX: Final = 4 << 20
"""Maximum number of bytes, taken from the end of each log file."""

TOPICS_MAX: Final = 200
CLUSTER: Final = {
    "overview": OVERVIEW,
    "brokers": "/quire/v1/brokers",
    "bundles": "/quire/v1/brokers/bundles",
    "bookies": "/quire/v1/bookies",
    "repair": "/quire/v1/repair",
    "lost": LOST,
    "archive": "/quire/v1/archive/status",
    "namespaces": "/quire/v1/namespaces",
}


@click.command("support-bundle")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Add the end of this log file of this machine, too; may be repeated.",
)
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Add this topic's stats; may be repeated."
)
@admin_url_option
@json_option
@connection_options
def command(
    file: Path | None,
    logs: Sequence[Path],
    topics: Sequence[str],
    admin_url: str,
    as_json: bool,
    tls: ClientTls,
    credentials: Credentials,
) -> None:
    """Write FILE, a .tar.gz with the cluster's state for troubleshooting, without secrets.

    Settings, stacks, metrics and the last lines of the log of each process, what the cluster says of itself, and what
    `quire doctor` finds. Names of topics and machines are in it. docs/doctor.md says what else.

    \b
    Examples:
      quire support-bundle
      quire support-bundle found.tar.gz --admin-url http://broker-1:8080 --topic orders
      quire support-bundle --log cluster/logs/broker-1.log
    """
    file = file or Path(time.strftime("quire-support-%Y%m%d-%H%M%S.tar.gz"))
    admin = Admin(admin_url, ASK_S, tls=tls, credentials=credentials)
    try:
        with file.open("xb") as made, tarfile.open(fileobj=made, mode="w:gz") as tar:
            bundle = Bundle(tar, admin, file.name.removesuffix(".tar.gz"))
            bundle.add_all(logs, topics)
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None
    missing = f", {len(bundle.missing)} things missing (missing.txt)" if bundle.missing else ""
    processes = "1 process" if bundle.members == 1 else f"{bundle.members} processes"
    said = f"wrote {file}, {size(file.stat().st_size)}, of {processes}{missing}"
    done(said, file=str(file), members=bundle.members, missing=bundle.missing).say(as_json)


class Bundle:
    """The tar file being written. Parts that are unavailable are listed as missing."""

    def __init__(self, tar: tarfile.TarFile, admin: Admin, folder: str) -> None:
        self._tar = tar
        self._admin = admin
        self._folder = folder
        self.members = 0
        self.missing: list[str] = []

    def add_all(self, logs: Sequence[Path], topics: Sequence[str]) -> None:
        """Add all parts, the findings of `quire doctor` first, because the other parts may take long."""
        self._try("doctor.json", self._doctor)
        self._try("members", self._add_members)
        for name, path in CLUSTER.items():
            self._try(f"cluster/{name}.json", partial(self._admin.get, path))
        for topic in topics[:TOPICS_MAX]:
            self._try(f"topics/{_as_file(topic)}.json", partial(self._topic, topic))
        for log in logs:
            self._try(f"logs/{log.absolute().parent.name}-{log.name}", partial(_end_of, log))
        if self.missing:
            self._add("missing.txt", "".join(f"{one}\n" for one in self.missing))

    def _doctor(self) -> dict[str, Any]:
        looked = Looked()
        looked.add("this machine", Machine().findings())
        look_at_cluster(self._admin, looked)
        return {"findings": looked.rows, "lookedAt": looked.at, "notLookedAt": looked.not_at}

    def _add_members(self) -> None:
        said = asked_of_all(self._admin, SUPPORT)
        self.missing += [*said["silent"], *said["unasked"]]
        for member in said["members"]:
            self._add_member("members/" + _as_file(f"{member['kind']}-{member['name']}"), member)

    def _add_member(self, folder: str, member: dict[str, Any]) -> None:
        self.members += 1
        stacks = [f"{name}\n{stack}" for name, stack in member.pop("stacks").items()]
        self._add(f"{folder}/stacks.txt", "\n".join([*stacks, *member.pop("tasks")]))
        self._add(f"{folder}/log.txt", "".join(f"{line}\n" for line in member.pop("log")))
        self._add(f"{folder}/metrics.txt", member.pop("metrics"))
        self._add(f"{folder}/security.json", member.pop("security", None))
        self._add(f"{folder}/settings.json", member)

    def _topic(self, topic: str) -> dict[str, Any]:
        """Return the stats of a topic, or of its partitions."""
        path = f"/admin/v2/{topic_name.path(topic)}"
        if self._admin.get(f"{path}/partitions").get("partitions", 0):
            return {"stats": self._admin.get(f"{path}/partitioned-stats")}
        explained = self._admin.get(f"/quire/v1/topics/{topic_name.path(topic)}/explain")
        return {
            "stats": self._admin.get(f"{path}/stats"),
            "internalStats": self._admin.get(f"{path}/internalStats"),
            "explain": explained,
        }

    def _try(self, name: str, have: Callable[[], Any]) -> None:
        """Add the result of `have`, if any; a failure is listed as missing, and does not prevent other parts."""
        try:
            content = have()
        except (QuireError, OSError) as error:
            self.missing.append(f"{name}: {error}")
            return
        if content is not None:
            self._add(name, content)

    def _add(self, name: str, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        data = without_secrets(text).encode(errors="replace")
        info = tarfile.TarInfo(f"{self._folder}/{name}")
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
        self._tar.addfile(info, io.BytesIO(data))


def _as_file(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - LOG_BYTES_MAX))
        return file.read().decode(errors="replace")
