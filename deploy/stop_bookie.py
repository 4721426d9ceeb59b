#!/usr/bin/env python3
"""What Kubernetes runs in a bookie's container before it stops it: the difference between a restart and leaving.

Both look alike to a process: SIGTERM, upon which a bookie of the chart drains. So this asks the API server how many
pods its stateful set (STATEFUL_SET, namespace/name) is to have:

| this pod's number is | or | then it |
|---|---|---|
| one of those | nobody knows | is to come back with its data: SIGINT stops it as it is, and is waited for |
| beyond them | | is scaled away: nothing is done, and SIGTERM drains it |
| any, with a set that is being deleted | | comes back some day or never: as it is |
"""

import json
import os
import signal
import ssl
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

TIMEOUT_S = 5
STOPPED_WITHIN_S = 50
POLL_S = 0.1
ACCOUNT = Path(os.environ.get("SERVICE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))


def is_scaled_away() -> bool:
    """Whether the stateful set has no place for this pod any more. Raises `OSError`, `ValueError` or `KeyError`."""
    namespace, _, name = os.environ["STATEFUL_SET"].partition("/")
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}"}
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urlopen(Request(url + path, headers=headers), timeout=TIMEOUT_S, context=trusted) as answer:
        found = json.load(answer)
    if "deletionTimestamp" in found["metadata"]:
        return False
    number = int(os.environ["POD_NAME"].rpartition("-")[2])
    return number >= int(found["spec"]["replicas"])


def stop(pid: int) -> None:
    """End the bookie with its data where they are, and wait for it."""
    try:
        os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + STOPPED_WITHIN_S
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(POLL_S)
    except ProcessLookupError:
        pass


try:
    leaves = is_scaled_away()
except (OSError, ValueError, KeyError) as error:
    print(
        f"cannot ask how many bookies there are to be, so this one keeps its data: {error!r}", file=sys.stderr
    )
    leaves = False
if not leaves:
    stop(int(os.environ.get("BOOKIE_PID", "1")))
