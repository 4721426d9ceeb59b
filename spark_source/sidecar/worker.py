"""The process that builds sidecars for a broker: one after the other, out of its way. `process` starts it.

A line of JSON comes in for each segment (`process.Job`), and one goes out when it is done:

    {"state": "built", "rows": 60000, "bytes": 362419}
    state   built     it is there now, and was not before
            there     it was there, or somebody else was faster
            gone      the segment was trimmed
            without   entries of it were lost: it cannot have one
            later     the store did not answer, or is full: `why`
            failed    `why`

What it does may be cut off at any point, so it needs no farewell: it ends with its parent, when its input ends, and
when a segment takes `SEGMENT_S`. It asks no broker for anything.
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
"""What takes longer hangs, and is ended; one of 256 MiB takes two seconds where nobody else runs."""

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    step_back()
    _end_with(int(sys.argv[1]))
    for line in sys.stdin.buffer:
        signal.alarm(SEGMENT_S)
        answer = done(json.loads(line))
        signal.alarm(0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def done(job: dict[str, Any]) -> dict[str, Any]:
    """Do one, and say so."""
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
    except Exception as error:  # a mistake of ours, or too little memory
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


def step_back() -> None:
    """Run when nobody else wants to, with memory that is bounded, and be the first to go where there is too little."""
    os.nice(19)
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass  # not everywhere, and nice is enough
    resource.setrlimit(resource.RLIMIT_DATA, (SIDECAR_PROCESS_BYTES_MAX, SIDECAR_PROCESS_BYTES_MAX))


def _end_with(parent: int) -> None:
    """Whoever started this is `parent`; when it is killed, so is this process. SIGTERM throws away what is begun."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    main()
