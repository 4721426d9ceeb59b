"""Process that builds a broker's sidecars, one at a time, at low priority. `process` starts it.

It reads a line of JSON for each segment (`process.Job`), and responds with a line of JSON:

    {"state": "built", "rows": 60000, "bytes": 362419}
    state   built     the sidecar was written
            there     the sidecar existed, or a concurrent process wrote it first
            `gone`    the segment was trimmed
            without   entries of the segment were lost, so that it cannot have a sidecar
            later     the store did not answer, or is full; `why` contains the error
            failed    an error that a retry will not fix; `why` contains it

The process may be killed at any point, so it does not shut down in an orderly way. It ends with its parent, at the end
of its input, and when a segment takes longer than `SEGMENT_S`. It sends no requests to brokers.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, Final

from quire.runtime.errors import DiskFull, NotFound, OutcomeUnknown, QuireError, Unavailable
from quire.runtime.limits import SIDECAR_PROCESS_BYTES_MAX
from quire.spark_source.plain import LostEntries
from quire.spark_source.plan import ArchivedObject, Slice, origin_of
from quire.spark_source.positions import Window
from quire.spark_source.sidecar.archive import State, find, write

SEGMENT_S: Final = 7200
"""Time limit for one segment, beyond which the process counts as hung. 256 MiB take two seconds on an idle machine."""

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    lower_priority()
    _die_with_parent(int(sys.argv[1]))
    for line in sys.stdin.buffer:
        signal.alarm(SEGMENT_S)
        answer = run_job(json.loads(line))
        signal.alarm(0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Build one sidecar, and return the response."""
    try:
        return _build(job)
    except NotFound:
        return {"state": "gone"}
    except LostEntries as error:
        return {"state": "without", "why": str(error)}
    except (Unavailable, OutcomeUnknown, DiskFull) as error:
        return {"state": "later", "why": str(error)}
    except QuireError as error:
        return {"state": "failed", "why": str(error)}
    except Exception as error:  # an internal error, or too little memory
        return {"state": "failed", "why": repr(error)}


def _build(job: dict[str, Any]) -> dict[str, Any]:
    archived = ArchivedObject(**job["archived"])
    piece = Slice(origin_of(job["topic"], job["ledger"]), 0, job["end_entry"], Window(), archived)
    found = find(piece, job["archive"])
    if found.state is State.THERE:
        return {"state": "there"}
    made = write(found, None, job["archive"])
    if made.bytes:
        return {"state": "built", "rows": made.rows, "bytes": made.bytes}
    return {"state": "there" if made.state is State.THERE else "gone"}


def lower_priority() -> None:
    """Run at idle priority and with a memory limit, as the first process that the kernel kills if memory runs out."""
    os.nice(19)
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass  # not on every system, and nice is enough
    resource.setrlimit(resource.RLIMIT_DATA, (SIDECAR_PROCESS_BYTES_MAX, SIDECAR_PROCESS_BYTES_MAX))


def _die_with_parent(parent: int) -> None:
    """End this process when `parent`, which started it, is killed. SIGTERM aborts the current job."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    main()
