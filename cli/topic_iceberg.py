"""`quire topics set-iceberg` and so on: the Iceberg table that is kept fresh with a topic."""

from __future__ import annotations

import click

from quire.cli.noun import Noun, topic_argument, topic_path
from quire.cli.output import Answer, done, fields
from quire.runtime.rest import Admin

verbs = Noun("topics")


@verbs.verb("set-iceberg")
@topic_argument
@click.option(
    "--catalog",
    required=True,
    metavar="URL",
    help="https://… of a REST catalog, postgresql://…, or /DIRECTORY; none: no table for this topic.",
)
@click.option(
    "--warehouse", default="", metavar="NAME", help="Warehouse for the tables; by default the catalog's own."
)
@click.option(
    "--namespace",
    default="",
    metavar="NAME",
    help="Namespace of the table in the catalog; by default TENANT_NAMESPACE.",
)
@click.option("--table", default="", metavar="NAME", help="Name of the table; by default that of TOPIC.")
def set_iceberg(admin: Admin, topic: str, **words: str) -> Answer:
    """Keep an Iceberg table fresh with TOPIC: `quire spark follow-iceberg` copies archived messages.

    \b
    Example:
      quire topics set-iceberg orders --catalog https://catalog:8181 --warehouse lake
    """
    if words["catalog"] == "none":
        admin.post(f"{topic_path(topic)}/iceberg", {})
        return done(f"no table is kept fresh with {topic}", topic=topic, iceberg=None)
    admin.post(f"{topic_path(topic)}/iceberg", words)
    said = f"{topic} is copied into a table of {words['catalog']}, once `quire spark follow-iceberg` runs"
    return done(said, topic=topic, iceberg=words)


@verbs.verb("get-iceberg")
@topic_argument
@click.option("--applied", is_flag=True, help="Effective policy of TOPIC, also if its namespace sets it.")
def get_iceberg(admin: Admin, topic: str, applied: bool) -> Answer:
    """Show the Iceberg table that is kept fresh with TOPIC.

    \b
    Example:
      quire topics get-iceberg orders --applied
    """
    policy = admin.get(f"{topic_path(topic)}/iceberg?applied={str(applied).lower()}")
    if not policy or not policy["catalog"]:
        return Answer(None, f"no table is kept fresh with {topic}")
    return fields(policy)


@verbs.verb("remove-iceberg")
@topic_argument
def remove_iceberg(admin: Admin, topic: str) -> Answer:
    """Stop keeping the Iceberg table of TOPIC fresh; the table is not changed.

    \b
    Example:
      quire topics remove-iceberg orders
    """
    admin.delete(f"{topic_path(topic)}/iceberg")
    return done(f"the table of {topic} is not kept fresh any more", topic=topic, removed=True)
