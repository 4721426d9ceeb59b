"""The pages lead somewhere: links have an end, files that are named are there, each word is explained once."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests import draw_states

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "deploy" / "README.md", *(ROOT / "docs").rglob("*.md")])
FOLDERS = {
    folder.name: folder.parent
    for parent in (ROOT / "serving", ROOT)  # pages name `topic/gate` for `serving/topic/gate.py`
    for folder in parent.iterdir()
    if folder.is_dir() and any(file.is_file() for file in folder.glob("*.*"))  # not `build/bdist.…` of pip
}

ROOMS = (
    "runtime wire metadata security bookie ledger objects wal tiering serving client gateway spark_source cli"
).split()
OUR_WORDS_MAX = 20


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)(#[^)]*)?\)", page.read_text()):
        there = (page.parent / target) if target else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        if anchor and there.suffix == ".md":
            assert anchor[1:] in anchors(there.read_text()), f"{name_of(page)} links to {target}{anchor}"


def anchors(text: str) -> set[str]:
    """What headings can be linked to by."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    for name in re.findall(r"`([\w-]+/[\w./-]+)`", page.read_text()):
        folder = FOLDERS.get(name.split("/")[0])
        if folder is None or name == "data/archive":  # where the server of docs/first-hour.md keeps it
            continue
        found = [folder / name, folder / f"{name}.py"]
        assert any(file.exists() for file in found), f"{name_of(page)} names {name}"


def test_the_diagrams_of_states_are_those_of_the_tables() -> None:
    assert draw_states.PAGE.read_text() == draw_states.page(), "draw them anew: python -m tests.draw_states"


@pytest.mark.parametrize("module", [*draw_states.machines()], ids=lambda module: module.__name__)
def test_a_table_of_states_comes_to_each_state_and_has_each_event(module: ModuleType) -> None:
    table = module.TRANSITIONS._table
    reached = {next(iter(table))[0]}
    while found := {after for (state, _), after in table.items() if state in reached} - reached:
        reached |= found
    assert reached - {None} == {each for state in reached if state is not None for each in type(state)}
    events = {event for _, event in table}
    assert events == {each for event in events for each in type(event)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_into_code_name_what_is_defined_there(page: Path) -> None:
    for target, name in re.findall(r"\]\(([^)#]+\.py)#([^)]+)\)", page.read_text()):
        tree = ast.parse((page.parent / target).read_text())
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        defined = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        assert name in defined, f"{name_of(page)} links to {name} in {target}"


def test_each_anatomy_has_twelve_steps_that_lead_into_the_code() -> None:
    _, *anatomies = (ROOT / "docs" / "anatomy.md").read_text().split("\n## ")
    assert len(anatomies) == 2
    for anatomy in anatomies:
        steps = re.findall(r"^\d+\. .*(?:\n   .*)*", anatomy, re.MULTILINE)
        assert [int(step.split(".")[0]) for step in steps] == list(range(1, 13))
        for step in steps:
            assert ".py#" in step, f"this step leads nowhere: {step}"


def test_the_index_lists_every_page_once() -> None:
    index = ROOT / "docs" / "README.md"
    targets = re.findall(r"^ *- \[.*?\]\(([^)]+\.md)\)", index.read_text(), re.MULTILINE)
    listed = [(index.parent / target).resolve() for target in targets]
    pages = [page.resolve() for page in (ROOT / "docs").rglob("*.md") if page != index]
    assert sorted(page for page in listed if page.is_relative_to(ROOT / "docs")) == sorted(pages)


def test_the_glossary_explains_each_word_once_and_in_order() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 50
    assert rows == sorted(set(rows), key=str.lower)


def test_the_words_of_our_own_are_few_and_the_code_uses_them() -> None:
    """A word that BookKeeper, Pulsar or a textbook has is theirs; each other one has to earn its place."""
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    ours = re.findall(r"\*+([^*]+?)\*+ \(Quire", glossary)
    assert glossary.count("(Quire") == len(ours) <= OUR_WORDS_MAX
    code = "\n".join(path.read_text() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    found = re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", code).lower()
    unused = [word for word in ours if not re.search(rf"\b{word}(?:s|es|ed)?\b", found)]
    assert not unused, f"strike these off docs/glossary.md: {unused}"
