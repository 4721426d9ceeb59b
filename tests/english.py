"""Checker of the project's English: docstrings, comments, log and error texts, documentation.

`python -m tests.english` prints what breaks a rule, as lines `path:qualname rule`.

| rule | where | what it asks |
|---|---|---|
| `verb` | docstrings of functions, not of properties | the first word is a verb in the imperative (`VERBS`) |
| `noun` | docstrings of modules, classes, attributes, properties | the first word is not one of `NO_FIRST_WORDS` |
| `start` | docstrings, comments, texts, pages | no sentence starts with a headless relative clause (`START`) |
| `"word"` | docstrings, comments, texts, pages | no banned word (`BANNED`) |
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
ROOMS = sorted(
    room.name for room in (REPOSITORY / "quire").iterdir() if room.is_dir() and room.name != "__pycache__"
)

VERBS = frozenset(
    """
    Abandon Abort Accept Acknowledge Acquire Adapt Add Adjust Admit Adopt Advance Align Allocate Allow Announce Answer
    Append Apply Archive Arrange Ask Assemble Assert Assign Attach Authenticate Authorize Await Back Balance Batch Be
    Become Begin Believe Bind Block Bound Break Bring Broadcast Build Cache Calculate Call Cancel Carry Cast Change
    Charge Check Choose Claim Clamp Clean Clear Close Coalesce Collect Combine Commit Compact Compare Complete Compose
    Compress Compute Configure Confirm Connect Construct Consume Convert Copy Correct Count Create Cut Deactivate Decide
    Declare Decode Decompress Decrease Decrypt Deduplicate Defer Define Delay Delegate Delete Deliver Derive Describe
    Deserialize Detach Detect Determine Disable Discard Disconnect Dispatch Display Distribute Divide Do Double Download
    Drain Draw Drop Dump Emit Enable Encode Encrypt End Enforce Enqueue Ensure Enter Escape Estimate Evict Examine
    Exchange Exclude Execute Exit Expand Expect Expire Explain Export Expose Extend Extract Fail Fence Fetch Fill Filter
    Find Finish Fit Flip Flush Follow Forbid Force Forget Fork Format Forward Free Freeze Fsync Gather Generate Get Give
    Go Grant Group Grow Guard Halt Hand Handle Hash Have Hide Hold Ignore Import Include Increase Increment Index Infer
    Initialize Inject Insert Inspect Install Interpret Intersect Invalidate Invoke Issue Iterate Join Judge Keep Kill
    Know Lay Leave Let Limit Link List Listen Load Locate Lock Log Look Lose Lower Maintain Make Map Mark Match Measure
    Merge Migrate Mirror Move Multiply Name Negotiate Normalize Note Notify Number Observe Obtain Omit Open Order
    Override Own Pack Pad Parse Partition Pass Patch Pause Perform Persist Pick Place Plan Poll Pop Postpone Prepare
    Preserve Prevent Print Probe Process Produce Project Promote Propose Protect Prove Provide Prune Publish Pull Push
    Put Query Queue Quote Raise Read Rebuild Receive Recognize Recompute Reconcile Reconnect Record Recover Redeliver
    Redirect Reduce Refill Refresh Refuse Register Reject Release Reload Remember Remove Rename Render Renew Reopen
    Repair Repeat Replace Replay Replicate Reply Report Represent Request Require Reserve Reset Resolve Respond Restart
    Restore Restrict Resume Retain Retire Retry Return Reuse Reverse Revoke Rewind Rewrite Roll Rotate Round Route Run
    Sample Save Say Scale Scan Schedule Seal Search See Seek Select Send Separate Serialize Serve Set Settle Share Shift
    Show Shrink Shut Sign Simulate Skip Sleep Slice Snapshot Sort Spawn Split Spread Start Stay Step Stop Store Stream
    Strike Strip Submit Subscribe Subtract Sum Summarize Suspend Swap Switch Synchronize Take Tell Terminate Test
    Throttle Throw Track Translate Transition Treat Trigger Trim Truncate Try Turn Uncompress Undo Unload Unlock Unpack
    Unregister Unseal Unsubscribe Unwrap Update Upgrade Upload Use Validate Verify Visit Wait Wake Walk Warn Watch Weigh
    Withdraw Wrap Write Yield Zero
    """.split()
)

NO_FIRST_WORDS = frozenset(
    "What Who Whoever Whom Whose Whether Where Which Those How They Somebody Nobody".split()
)

START = re.compile(
    r"(?:^|(?<=[.!?;:] )|(?<=\n))(What|Who|Whoever|Those|That which|Somebody|Nobody)\b(?![^.!?]*\?)"
)

BANNED = {
    "ours": re.compile(r"\bours\b", re.I),
    "none is": re.compile(r"\bnone (?:is|are)\b|\b(?<![Tt]here )(?:is|are) none\b"),
    "anew": re.compile(r"\banew\b", re.I),
    "whoever": re.compile(r"\bwhoever\b", re.I),
    "somebody": re.compile(r"\bsomebody\b", re.I),
    "nobody": re.compile(r"\bnobody\b", re.I),
    "is told": re.compile(r"\b(?:is|are|was|were|be|been) told\b", re.I),
    "hears of": re.compile(r"\b(?:hears?|heard|hearing) of\b", re.I),
    "let in": re.compile(r"\b(?:let|lets|letting) (?:it |them |him )?in\b", re.I),
    "a mistake of": re.compile(r"\ba mistake of\b", re.I),
    "gone": re.compile(r"(?<!`)\bgone\b(?!`)", re.I),
    "is no": re.compile(
        r"\b(?<!there )(?:is|are) no (?!longer\b|more\b|less\b|later\b|earlier\b|older\b|newer\b)", re.I
    ),
}

GENERATED = ("wire/pulsar_pb2.py",)


def offenders() -> list[str]:
    """Return the texts that break a rule, as sorted lines `path:qualname rule`."""
    found = {line for room in ROOMS for path in (REPOSITORY / room).rglob("*.py") for line in in_code(path)}
    found |= {line for path in pages() for line in in_page(path)}
    return sorted(found)


def pages() -> Iterator[Path]:
    """Yield the pages of documentation; journals keep the words of their time."""
    for pattern in ("*.md", "deploy/*.md", "docs/*.md", "docs/decisions/*.md"):
        yield from REPOSITORY.glob(pattern)


def in_code(path: Path) -> Iterator[str]:
    """Yield the offenders of one module."""
    name = str(path.relative_to(REPOSITORY))
    if name in GENERATED:
        return
    source = path.read_text()
    scopes = Scopes(ast.parse(source))
    for where, kind, text in scopes.docstrings:
        yield from (f"{name}:{where} {rule}" for rule in [*of_the_first_word(kind, text), *of_prose(text)])
    for where, text in scopes.texts:
        yield from (f"{name}:{where} {rule}" for rule in of_prose(text))
    for line, text in comments(path):
        yield from (f"{name}:{scopes.at(line)} {rule}" for rule in of_prose(text))


def in_page(path: Path) -> Iterator[str]:
    """Yield the offenders of a page of documentation outside blocks of code, by the heading above each."""
    name, heading, is_code = str(path.relative_to(REPOSITORY)), "", False
    sections: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and line.startswith("#"):
            heading = re.sub(r"[^\w]+", "-", line.lower()).strip("-")
        elif not is_code:
            sections.setdefault(heading, []).append(line)
    for heading, lines in sections.items():
        yield from (f"{name}:{heading} {rule}" for rule in of_prose("\n\n".join(paragraphs(lines))))


def paragraphs(lines: list[str]) -> Iterator[str]:
    """Join the lines of each paragraph; an item of a list and a cell of a table are paragraphs of their own."""
    parts: list[str] = []
    for line in lines:
        stripped = line.strip()
        if not stripped or stripped[0] in "|-*>" or re.match(r"\d+\. ", stripped):
            yield " ".join(parts)
            parts = []
        if stripped.startswith("|"):
            yield from (cell.strip() for cell in stripped.split("|"))
        else:
            parts.append(re.sub(r"^(?:[-*>]|\d+\.) +", "", stripped))
    yield " ".join(parts)


def of_the_first_word(kind: str, text: str) -> Iterator[str]:
    """Yield `verb` or `noun` if the docstring starts with the wrong kind of word."""
    first = re.split(r"[^\w'`-]", text.strip(), maxsplit=1)[0]
    if kind == "function" and first not in VERBS:
        yield "verb"
    if kind == "noun" and first in NO_FIRST_WORDS:
        yield "noun"


def of_prose(text: str) -> Iterator[str]:
    """Yield the rules that a text breaks by how its sentences start and by its words."""
    text = "\n".join(re.sub(r"\s+", " ", paragraph).strip() for paragraph in text.split("\n\n"))
    if START.search(text):
        yield "start"
    yield from (f'"{word}"' for word, pattern in BANNED.items() if pattern.search(text))


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each run of comment lines as one text, with its first line's number."""
    run: list[str] = []
    first = last = 0
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type != tokenize.COMMENT:
                continue
            line = token.start[0]
            if run and line != last + 1:
                yield first, " ".join(run)
                run = []
            first, last = (line if not run else first), line
            run.append(token.string.lstrip("#: "))
    if run:
        yield first, " ".join(run)


class Scopes(ast.NodeVisitor):
    """Docstrings and other texts of one module, with the qualified names of their scopes."""

    def __init__(self, module: ast.Module) -> None:
        self.docstrings: list[tuple[str, str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self._spans: list[tuple[int, int, str]] = []
        self._names: list[str] = []
        self._scope(module, "noun")

    def at(self, line: int) -> str:
        """Return the qualified name of the innermost scope around a line."""
        around = [span for span in self._spans if span[0] <= line <= span[1]]
        return max(around)[2] if around else "<module>"

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Enter a class."""
        self._named(node, "noun")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Enter a function; a property's docstring is a noun phrase."""
        self._named(
            node, "noun" if any("property" in ast.unparse(d) for d in node.decorator_list) else "function"
        )

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Enter a coroutine."""
        self._named(node, "function")

    def visit_Expr(self, node: ast.Expr) -> None:
        """Record a string that stands alone: the docstring of an attribute."""
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            self.docstrings.append((self._qualname(), "noun", node.value.value))
        else:
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Record an f-string with `X` for each value."""
        parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        self.texts.append((self._qualname(), "".join(map(str, parts))))

    def visit_Constant(self, node: ast.Constant) -> None:
        """Record a string of more than one word."""
        if isinstance(node.value, str) and " " in node.value:
            self.texts.append((self._qualname(), node.value))

    def _named(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, kind: str) -> None:
        self._names.append(node.name)
        self._spans.append((node.lineno, node.end_lineno or node.lineno, self._qualname()))
        self._scope(node, kind)
        self._names.pop()

    def _scope(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, kind: str
    ) -> None:
        docstring = ast.get_docstring(node)
        if docstring is not None:
            self.docstrings.append((self._qualname(), kind, docstring))
        for child in [*getattr(node, "decorator_list", ()), *node.body[docstring is not None :]]:
            self.visit(child)

    def _qualname(self) -> str:
        return ".".join(self._names) or "<module>"


def main() -> int:
    """Print the offenders; return the exit code."""
    found = offenders()
    print("\n".join([*(f"offends: {line}" for line in found), f"{len(found)} offenders"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
