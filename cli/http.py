"""What commands share that ask a broker's REST interface: their options, and a topic's name at the tab key."""

from __future__ import annotations

import os
from urllib.parse import quote

import click

from quire.runtime.errors import QuireError
from quire.runtime.rest import DEFAULT_URL, Admin

COMPLETION_S = 1.0

admin_url_option = click.option(
    "--admin-url",
    default=lambda: os.environ.get("QUIRE_ADMIN_URL", DEFAULT_URL),
    show_default=False,
    metavar="URL",
    help="HTTP address of a broker (environment: QUIRE_ADMIN_URL).  [http://127.0.0.1:8080]",
)


def _complete_topics(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
    """For the shell's tab key: the topics of public/default, or of the namespace that is typed (tenant/namespace/…)."""
    namespace, slash, _begin = begin.rpartition("/")
    url = context.params.get("admin_url") or os.environ.get("QUIRE_ADMIN_URL", DEFAULT_URL)
    try:
        names = Admin(url, COMPLETION_S).get(f"/admin/v2/persistent/{quote(namespace or 'public/default')}")
    except QuireError:
        return []
    found = (f"{namespace}{slash}{name.rpartition('/')[2]}" for name in names)
    return sorted(name for name in found if name.startswith(begin))


topic_argument = click.argument("topic", shell_complete=_complete_topics)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
