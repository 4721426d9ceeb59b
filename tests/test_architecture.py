"""The import table of docs/architecture.md is true, cores reach for no I/O, files stay readable and go one way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
ONE_A_NOUN = ("cli", "admin")

MAY_IMPORT: dict[str, set[str]] = {
    "runtime": set(),
    "wire": {"runtime"},
    "metadata": {"runtime"},
    "security": {"runtime"},
    "bookie": {"wire", "runtime", "metadata", "security"},
    "ledger": {"wire", "runtime", "metadata", "security"},
    "objects": {"wire", "runtime"},
    "identity": {"wire", "runtime", "metadata", "objects"},
    "wal": {"wire", "runtime", "metadata", "bookie", "objects", "identity"},
    "tiering": {"wire", "runtime", "metadata", "ledger", "objects", "identity"},
    "serving": {"wire", "runtime", "metadata", "security", "ledger", "tiering"},
    "rescue": {"wire", "runtime", "metadata", "ledger", "objects", "identity", "wal", "tiering", "serving"},
    "client": {"wire", "runtime"},
    "gateway": {"wire", "runtime", "metadata", "security"},
    "spark_source": {"wire", "runtime", "metadata", "objects", "identity", "tiering", "client"},
    "testing": {"wire", "runtime", "metadata", "bookie", "ledger", "objects", "identity"},
    "demo": {"runtime"},
    "process": {
        "wire",
        "runtime",
        "metadata",
        "security",
        "bookie",
        "ledger",
        "objects",
        "identity",
        "wal",
        "tiering",
        "serving",
        "client",
        "gateway",
        "spark_source",
    },
    "perf": {"runtime", "client", "process"},
    "cli": {
        "wire",
        "runtime",
        "metadata",
        "security",
        "bookie",
        "ledger",
        "objects",
        "identity",
        "wal",
        "tiering",
        "serving",
        "rescue",
        "client",
        "gateway",
        "spark_source",
        "testing",
        "demo",
        "process",
        "perf",
    },
}

IN_SERVING: dict[str, set[str]] = {
    "settings": set(),
    "names": set(),
    "policy": {"settings", "names"},
    "schema": {"names", "policy"},
    "model": {"policy"},
    "topic": {"settings", "names", "policy", "model"},
    "subscription": {"policy", "model"},
    "ownership": {"names", "model"},
    "registry": {"names", "policy", "schema", "model", "topic", "subscription", "ownership"},
    "operations": {"names", "policy", "schema", "model", "topic", "subscription", "ownership", "registry"},
    "session": {"settings", "names", "policy", "model", "topic", "subscription", "ownership", "operations"},
    "console": set(),
    "admin": {
        "names",
        "policy",
        "schema",
        "model",
        "ownership",
        "registry",
        "operations",
        "broker",
        "console",
    },
    "broker": {
        "settings",
        "names",
        "policy",
        "schema",
        "model",
        "topic",
        "subscription",
        "ownership",
        "registry",
        "operations",
        "session",
    },
}
"""What each folder, or file, of `serving/` may import of the others: types, too."""

CORES = (
    "runtime/transitions.py",
    "wire/*.py",
    "metadata/paths.py",
    "metadata/records.py",
    "metadata/schema_records.py",
    "metadata/unknown_fields.py",
    "metadata/bookie_states.py",
    "metadata/segment_states.py",
    "metadata/tree.py",
    "metadata/zookeeper_session.py",
    "metadata/zookeeper_url.py",
    "bookie/journal_core.py",
    "bookie/memtable.py",
    "bookie/ledgers.py",
    "bookie/room.py",
    "bookie/write_cache.py",
    "wal/wal_object.py",
    "wal/wal_core.py",
    "wal/closing_core.py",
    "ledger/states.py",
    "ledger/holes.py",
    "ledger/answers.py",
    "ledger/placement.py",
    "ledger/writer_core.py",
    "ledger/recovery_core.py",
    "ledger/repair_core.py",
    "ledger/rolling.py",
    "ledger/worklist.py",
    "ledger/rtt.py",
    "ledger/replicas.py",
    "rescue/wal_plan.py",
    "rescue/ledger_plan.py",
    "rescue/topic_plan.py",
    "rescue/bundle_plan.py",
    "security/identity.py",
    "security/authorization.py",
    "security/connections.py",
    "serving/names.py",
    "serving/model/ports.py",
    "serving/model/topics_pattern.py",
    "gateway/frames.py",
    "runtime/token_bucket.py",
    "runtime/sources.py",
    "runtime/fair_queue.py",
    "serving/policy/resolved.py",
    "serving/policy/strategy.py",
    "wire/error_codes.py",
    "serving/model/positions.py",
    "serving/subscription/cursor/entry_set.py",
    "serving/subscription/cursor/redelivery.py",
    "serving/subscription/cursor/partial_acks.py",
    "serving/subscription/delayed/delayed_snapshot.py",
    "serving/subscription/delayed/delayed_snapshot_record.py",
    "serving/subscription/cursor/cursor.py",
    "serving/subscription/cursor/cursor_record.py",
    "serving/subscription/delayed/delays.py",
    "serving/subscription/dispatch/window.py",
    "serving/subscription/dispatch/dispatcher.py",
    "serving/subscription/dispatch/shared.py",
    "serving/subscription/dispatch/shared_queue.py",
    "serving/subscription/dispatch/single_active.py",
    "serving/subscription/dispatch/multi_consumer.py",
    "serving/subscription/dispatch/pending_acks.py",
    "serving/subscription/dispatch/read_position.py",
    "serving/subscription/dispatch/replay_queue.py",
    "serving/subscription/dispatch/runs.py",
    "serving/subscription/dispatch/key_queue.py",
    "serving/subscription/delayed/delayed_entries.py",
    "serving/subscription/delivery/coalescing.py",
    "serving/subscription/dispatch/key_owners.py",
    "serving/subscription/dispatch/key_shared.py",
    "serving/subscription/dispatch/slots.py",
    "serving/subscription/dispatch/blocked.py",
    "serving/subscription/byte_index.py",
    "serving/subscription/delivery/delivery.py",
    "serving/subscription/delivery/consumer.py",
    "serving/subscription/acknowledging.py",
    "serving/subscription/dispatch/kinds.py",
    "serving/model/request.py",
    "serving/subscription/delivery/meter.py",
    "serving/ownership/balance.py",
    "serving/ownership/table.py",
    "serving/topic/compaction/compacting.py",
    "serving/topic/dedup.py",
    "serving/topic/producers.py",
    "serving/topic/publish_times.py",
    "serving/topic/segments.py",
    "serving/topic/lifecycle/explain.py",
    "serving/topic/lifecycle/quota.py",
    "serving/topic/lifecycle/states.py",
    "serving/topic/lifecycle/retention.py",
    "serving/schema/avro_resolution.py",
    "serving/schema/avro_values.py",
    "serving/schema/avro_writing.py",
    "serving/schema/reading.py",
    "serving/schema/writing.py",
    "serving/schema/definition.py",
    "serving/schema/compatibility.py",
    "serving/model/rates.py",
    "serving/topic/tail_cache.py",
    "tiering/segment_object.py",
    "spark_source/positions.py",
    "spark_source/protobuf.py",
    "spark_source/batches.py",
    "spark_source/rows.py",
    "spark_source/columns.py",
    "spark_source/decode.py",
    "spark_source/plain.py",
    "spark_source/jobs/checks.py",
    "spark_source/jobs/sketches.py",
    "spark_source/filters.py",
    "spark_source/sidecar/layout.py",
    "spark_source/sidecar/build.py",
    "spark_source/sidecar/choose.py",
    "spark_source/sink/sequence_ids.py",
    "spark_source/sink/rows.py",
    "client/acks.py",
    "client/beginning.py",
    "client/chunks.py",
    "client/entry.py",
    "client/permits.py",
    "client/record.py",
    "client/routing.py",
    "client/sealing.py",
    "perf/histogram.py",
    "perf/tally.py",
)

NOT_IN_A_CORE = frozenset(
    "asyncio socket ssl select selectors threading subprocess multiprocessing concurrent time random os io pathlib "
    "shutil tempfile sqlite3 lmdb kazoo boto3 aiohttp uvloop".split()
)


def imports_of(file: Path) -> set[str]:
    """Every module a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    files = sorted((REPOSITORY / room).rglob("*.py"))
    assert files, f"the room {room} is empty"
    for file in files:
        for name in imports_of(file):
            if not name.startswith("quire."):
                continue
            other = name.split(".")[1]
            if other in ("__version__", room):
                continue
            assert other in MAY_IMPORT[room], f"{file.relative_to(REPOSITORY)} imports {name}"


@pytest.mark.parametrize("part", IN_SERVING)
def test_a_part_of_serving_imports_only_what_the_table_allows(part: str) -> None:
    place = REPOSITORY / "serving" / part
    files = sorted(place.rglob("*.py")) or [place.with_suffix(".py")]
    for file in files:
        for name in imports_of(file):
            other = name.removeprefix("quire.serving.").split(".")[0]
            if name.startswith("quire.serving.") and other != part:
                assert other in IN_SERVING[part], f"{file.relative_to(REPOSITORY)} imports {name}"


def test_the_table_of_serving_is_whole() -> None:
    parts = {path.stem for path in (REPOSITORY / "serving").iterdir() if path.suffix in ("", ".py")}
    assert parts - {"__init__", "__pycache__"} == set(IN_SERVING)


@pytest.mark.parametrize("table", [MAY_IMPORT, IN_SERVING], ids=["rooms", "serving"])
def test_a_table_has_no_circle(table: dict[str, set[str]]) -> None:
    done: set[str] = set()
    while len(done) < len(table):
        ready = {room for room, needs in table.items() if room not in done and needs <= done}
        assert ready, f"a circle among {set(table) - done}"
        done |= ready


@pytest.mark.parametrize("pattern", CORES)
def test_a_core_imports_no_io_and_never_waits(pattern: str) -> None:
    files = sorted(REPOSITORY.glob(pattern))
    assert files, f"no core matches {pattern}; mend the list"
    for file in files:
        roots = {name.split(".")[0] for name in imports_of(file)}
        assert not roots & NOT_IN_A_CORE, (
            f"{file.relative_to(REPOSITORY)} reaches for {roots & NOT_IN_A_CORE}"
        )
        waits = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Await)]
        assert not waits, f"{file.relative_to(REPOSITORY)} awaits in line {waits[0]}"


def test_a_broker_has_one_road_to_helper_threads() -> None:
    """`DaemonThreads.run`, of a few threads: more would only take the interpreter from the loop more often."""
    for file in sorted((REPOSITORY / "serving").rglob("*.py")):
        found = re.search(r"\b(to_thread|run_in_executor)\b", file.read_text())
        assert found is None, f"{file.relative_to(REPOSITORY)} goes another way: {found}"


def test_the_tables_in_the_documentation_are_these() -> None:
    lines = (REPOSITORY / "docs/architecture.md").read_text().splitlines()
    rows = {
        line.split("`")[1].removesuffix(".py").rstrip("/"): line.split("|")[3].strip()
        for line in lines
        if line.startswith("| `")
    }
    table = MAY_IMPORT | {part: may for part, may in IN_SERVING.items() if may}
    assert set(rows) == set(table)
    words = {
        "nothing": set(),
        "all": set(MAY_IMPORT) - {"cli"},
        "all of these but console and admin": set(IN_SERVING) - {"console", "admin", "broker"},
    }
    for room, may in rows.items():
        expected = words.get(may, {word.strip() for word in may.split(",")})
        assert expected == table[room], f"{room}: the page says {may}"


def source_files() -> list[Path]:
    """All that people read: rooms, tests, bench; not what is generated."""
    found = [
        file for folder in (*MAY_IMPORT, "tests", "bench") for file in (REPOSITORY / folder).rglob("*.py")
    ]
    return [file for file in sorted(found) if not file.stem.endswith("_pb2")]


def test_files_open_with_what_they_are_and_end_before_a_reader_tires() -> None:
    for file in source_files():
        text = file.read_text()
        name, tree = file.relative_to(REPOSITORY), ast.parse(text)
        assert not text.strip() or ast.get_docstring(tree), f"{name} does not say what it is"
        assert text.count("\n") <= FILE_LINES_MAX, (
            f"{name} is too long: find what in it has a name of its own"
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= FUNCTION_LINES_MAX, f"{node.name} in {name} has {lines} lines"


def test_a_folder_says_in_what_order_its_files_are_read() -> None:
    """All of them; where there is one file a noun, the folder need not name each."""
    for init in {file.parent / "__init__.py" for file in source_files() if file.parts[-2] not in ONE_A_NOUN}:
        if init.relative_to(REPOSITORY).parts[0] not in MAY_IMPORT:
            continue
        told = ast.get_docstring(ast.parse(init.read_text())) or ""
        names = {file.stem for file in init.parent.glob("*.py")} - {"__init__", "pulsar_pb2"}
        untold = sorted(name for name in names if not re.search(rf"\b{name}\b", told))
        assert not untold, f"{init.relative_to(REPOSITORY)} does not name {untold}"


def test_files_import_in_no_circle() -> None:
    """Imports for types alone count, and those within functions."""
    modules = {}
    for file in source_files():
        path = file.relative_to(REPOSITORY)
        if path.parts[0] in MAY_IMPORT and path.name != "__init__.py":
            modules["quire." + ".".join(path.with_suffix("").parts)] = file
    needs = {
        module: {found for name in imports_of(file) if (found := home_of(name, modules))} - {module}
        for module, file in modules.items()
    }
    while needs:
        ready = {module for module, imports in needs.items() if not imports & needs.keys()}
        assert ready, f"a circle among {sorted(needs)}"
        needs = {module: imports for module, imports in needs.items() if module not in ready}


def home_of(name: str, modules: dict[str, Path]) -> str:
    """The module that a name is imported from; "" when it is none of ours."""
    return name if name in modules else name.rpartition(".")[0] if name.rpartition(".")[0] in modules else ""


SIZES_MAX = {
    "methods": 25,
    "attributes": 15,
    "imports": 18,
    "parameters": 6,
    "parameters of a constructor": 8,
}
RECORDS = frozenset("dataclass NamedTuple Struct Enum IntEnum Flag TypedDict Protocol".split())

LARGER: dict[str, int] = {
    "imports cli/rescue.py": 29,
    "imports process/bookie.py": 26,
    "imports process/broker.py": 26,
    "imports process/parts.py": 23,
    "imports process/standalone.py": 29,
    "imports wal/storage.py": 21,
    "parameters cli/spark.py:compact": 7,
    "parameters cli/spark.py:replay": 7,
    "parameters client/client.py:Client.consumer": 14,
    "parameters client/client.py:Client.reader": 7,
    "parameters of a constructor spark_source/decode.py:Decoder.__init__": 9,
    "parameters spark_source/jobs/iceberg.py:copy": 7,
    "parameters spark_source/protobuf.py:_field": 7,
    "parameters wal/wal_object.py:encode_data": 7,
    "parameters wire/block.py:cut": 7,
}
"""Sizes above `SIZES_MAX` that are allowed: entries are only removed, and numbers only become smaller."""


def names_of(nodes: Iterable[ast.expr]) -> set[str]:
    """The last words of bases and decorators: `dataclass` of `@dataclass(frozen=True)`."""
    found = (node.func if isinstance(node, ast.Call) else node for node in nodes)
    return {getattr(node, "attr", getattr(node, "id", "")) for node in found}


def attributes_of(found: ast.ClassDef) -> set[str]:
    """What its methods assign to `self`, and what its body declares; plain records are not counted."""
    if names_of([*found.bases, *found.decorator_list]) & RECORDS:
        return set()
    assigned = {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    declared = {node.target for node in found.body if isinstance(node, ast.AnnAssign) and node.value is None}
    return assigned | {target.id for target in declared if isinstance(target, ast.Name)}


def sizes_in(tree: ast.AST, place: str) -> Iterator[tuple[str, str, int]]:
    """Yield the size of each class and function below `tree`: its kind, of what, how much; not a command's options."""
    for node in ast.iter_child_nodes(tree):
        inner = place
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{place}{':' if '.py:' not in place else '.'}{node.name}"
        if isinstance(node, ast.ClassDef):
            methods = {
                one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            yield "methods", inner, len(methods)
            yield "attributes", inner, len(attributes_of(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if names_of(node.decorator_list) & {"command"}:
                continue
            given = node.args
            words = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            count = sum(one is not None and one.arg not in ("self", "cls") for one in words)
            size = "parameters of a constructor" if node.name == "__init__" else "parameters"
            yield size, inner, count
        yield from sizes_in(node, inner)


def sizes() -> dict[str, int]:
    """All that exceed `SIZES_MAX`."""
    found: dict[str, int] = {}
    for room in MAY_IMPORT:
        for file in sorted((REPOSITORY / room).rglob("*.py")):
            place = str(file.relative_to(REPOSITORY))
            ours = {
                module
                for name in imports_of(file)
                if name.startswith("quire.") and (module := module_of(name)) != module_of_file(file)
            }
            every = [("imports", place, len(ours)), *sizes_in(ast.parse(file.read_text()), place)]
            found |= {f"{size} {of}": count for size, of, count in every if count > SIZES_MAX[size]}
    return found


def module_of(name: str) -> str:
    """`quire.metadata.paths` of itself, `quire.runtime.errors` of `quire.runtime.errors.NotFound`."""
    path = REPOSITORY.joinpath(*name.split(".")[1:])
    is_module = path.is_dir() or path.with_suffix(".py").exists()
    return name if is_module else name.rpartition(".")[0]


def module_of_file(file: Path) -> str:
    return "quire." + ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)


def test_what_is_large_becomes_smaller() -> None:
    found = sizes()
    for what, count in found.items():
        allowed = LARGER.get(what, SIZES_MAX[what.rpartition(" ")[0]])
        assert count <= allowed, f"{what}: {count}, and {allowed} are most; part it by what it is for"
    assert not (done := sorted(LARGER.keys() - found.keys())), f"strike these off LARGER: {done}"
    assert list(LARGER) == sorted(LARGER)


def test_every_package_is_linked_into_quire() -> None:
    links = {link.name for link in (REPOSITORY / "quire").iterdir() if link.is_symlink()}
    assert links == set(MAY_IMPORT)
    for name in links:
        assert (REPOSITORY / "quire" / name).resolve() == REPOSITORY / name
