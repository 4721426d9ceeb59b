"""MkDocs hooks that add pages outside docs/, build the navigation from the index, and rewrite links to source files.

A page's links are relative to its file in the repository, so that they work there. On the site, a link to a page leads
to that page, and a link to any other file leads to the repository. A link `file.py#Name` leads to the line that defines
the name.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
INDEX = "docs/README.md"
PAGES = {
    "README.md": "index.md",
    INDEX: "pages.md",
    "CHANGELOG.md": "changes.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-reports.md",
    "deploy/README.md": "deployment.md",
}
"""Pages that are not below docs/, or have another name on the site: file in the repository -> page of the site."""

CLIENT = "client-reference.md"
CLIENT_PAGE = (
    "# Python client\n\nThe [tour](client.md) explains the client by examples.\n\n::: quire.client\n"
)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#([^)\s]*))?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the navigation from the index's sections."""
    sections: dict[str, list[Any]] = {}
    for heading, title, target in re.findall(
        r"^## (.+)$|^- \[(.+?)\]\((.+?)\)", (ROOT / INDEX).read_text(), re.MULTILINE
    ):
        if heading:
            section = sections.setdefault(heading, [])
        else:
            section.append({title: _address(_normal("docs", target), "", config)})
    sections["Reference"].append({"Python client": CLIENT})
    repository_pages = [PAGES["SECURITY.md"], PAGES["CODE_OF_CONDUCT.md"]]
    config.nav = [
        {"Quire": ["index.md", PAGES[INDEX], *repository_pages]},
        *({k: v} for k, v in sections.items()),
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/ and the client's reference."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, CLIENT, content=CLIENT_PAGE))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page's links to files of the repository as links that work on the site."""
    if page.file.abs_src_path is None:
        return markdown
    folder = str(Path(page.file.abs_src_path).relative_to(ROOT).parent)

    def replace(link: re.Match[str]) -> str:
        address = _address(_normal(folder, link[1]), link[2] or "", config)
        if not re.match(r"\w+:", address):
            address = posixpath.relpath(address, posixpath.dirname(page.file.src_uri))
        return f"]({address})"

    return LINK.sub(replace, markdown)


def _normal(folder: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(folder, target))


def _address(path: str, anchor: str, config: MkDocsConfig) -> str:
    """Return the site's page for a file in the repository, or else the file's URL in the repository."""
    inside = path.removeprefix("docs/")
    if path in PAGES or (path.endswith(".md") and inside != path):
        return PAGES.get(path, inside) + (f"#{anchor}" if anchor else "")
    if not (ROOT / path).exists():
        raise PluginError(f"a page links to {path}, which does not exist")
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    line = f"#L{_line(ROOT / path, anchor)}" if anchor else ""
    return f"{config.repo_url}/{kind}/HEAD/{path}{line}"


def _line(path: Path, name: str) -> int:
    """Return the number of the line that defines the class or function `name`."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds) and node.name == name:
            return node.lineno
    raise PluginError(f"a page links to {name} in {path}, which does not define it")
