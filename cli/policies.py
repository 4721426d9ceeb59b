"""`quire policies`: lists, shows, sets and removes the policies of namespaces and topics.

Policies are the rows of `policy_json`, so a new row is a new policy here. `policy_values` reads and prints values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final
from urllib.parse import quote

import click

from quire.cli import policy_values
from quire.cli.noun import Noun, json_option, place_path, where_argument
from quire.cli.output import Answer, done
from quire.cli.policy_values import kebab, simplified
from quire.runtime.errors import ConfigurationError
from quire.runtime.rest import Admin
from quire.serving.admin.policy_json import POLICIES, QUOTAS, PolicyJson
from quire.serving.admin.policy_prose import ABOUT
from quire.wire import topic_name

_UNIT: Final = re.compile("(-in)?-(ms|millis|seconds|minutes)$")
"""End of a name in REST that says the unit, which values have here."""

NEGATIVE: Final = ("-0", "-1", "-2", "-3", "-4", "-5", "-6", "-7", "-8", "-9")


@dataclass(frozen=True)
class Policy:
    """Policy by its name on the command line. `quota` is the type that REST's query selects, of a backlog quota."""

    name: str
    row: PolicyJson
    quota: str = ""

    @property
    def about(self) -> str:
        return ABOUT.get(self.row.field, "").rstrip(".")

    @property
    def json_form(self) -> str:
        """Form of REST's JSON."""
        shape = self.row.shape
        return " ".join(str(shape.__doc__ if isinstance(shape, type) else shape.says).split())

    @property
    def form(self) -> str:
        """Form of the value, and the units of plain numbers."""
        form, units = policy_values.form(self.row), policy_values.units(self.row)
        return f"{form}; plain numbers: {units}" if units else form

    @property
    def names(self) -> set[str]:
        """Names that are accepted, simplified."""
        row = self.row
        if self.quota:
            return {simplified(self.name), simplified(f"{row.word}-{self.quota}")}
        return {simplified(one) for one in (self.name, row.word, row.topic_word, row.name) if one}

    def word(self, where: str) -> str:
        """Return the last word of the path at a namespace or topic. Raises `ConfigurationError` if it has none."""
        is_topic = "://" in where
        word = self.row.topic_word if is_topic else self.row.word
        if not word:
            level, other = ("topics", "its namespace") if is_topic else ("namespaces", "a topic")
            raise ConfigurationError(f"{level} have no policy {self.name}; set it for {other}")
        return word

    def path(self, where: str) -> str:
        query = f"?backlogQuotaType={quote(self.quota)}" if self.quota else ""
        return f"{place_path(where)}/{self.word(where)}{query}"

    def of(self, shown: Mapping[str, Any], where: str) -> Any:
        """Return the policy's part of a map by the paths' last words."""
        found = shown.get(self.word(where))
        return (found or {}).get(self.quota) if self.quota else found


@cache
def policies() -> Mapping[str, Policy]:
    """Return all policies by name, in the order of the names."""
    quotas = enumerate(QUOTAS.items())  # the first type is REST's default
    every = [Policy(_UNIT.sub("", kebab(row.word or row.topic_word)), row) for row in POLICIES]
    every += [
        Policy(kebab(f"{row.word}-{kind}" if number else row.word), row, kind)
        for number, (kind, row) in quotas
    ]
    return {one.name: one for one in sorted(every, key=lambda one: one.name)}


def policy_of(name: str) -> Policy:
    """Return a policy by any of its names. Raises `ConfigurationError`."""
    for one in policies().values():
        if simplified(name) in one.names:
            return one
    near = get_close_matches(kebab(name), policies(), n=1) or [
        one for one in policies() if f"-{kebab(name)}" in f"-{one}"
    ]
    hint = f"did you mean {' or '.join(near[:3])}? " if near else ""
    raise ConfigurationError(f"there is no policy {name!r}; {hint}`quire policies list` explains all")


def _of_level(where: str) -> Iterator[Policy]:
    """Yield the policies that a namespace or topic can have."""
    for one in policies().values():
        if one.row.topic_word if "://" in where else one.row.word:
            yield one


def _complete_names(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
    where = context.params.get("where") or ""
    names = (one.name for one in (_of_level(where) if where else policies().values()))
    return [name for name in names if name.startswith(begin)]


def _complete_values(context: click.Context, _: click.Parameter, begin: str) -> list[str]:
    try:
        words = policy_values.choices(policy_of(context.params.get("name") or "").row)
    except ConfigurationError:
        return []
    return [word for word in words if word.startswith(begin)]


def _check(where: str) -> str:
    """Return `where` if it can have policies. Raises `ConfigurationError`."""
    place_path(where)
    if "://" in where and (parts := topic_name.split(where))[0] != "persistent":
        raise ConfigurationError(
            f"{where} has no policies of its own, because only persistent topics have: set them for its namespace, "
            f"{parts[1]}/{parts[2]}"
        )
    return where


@click.group("policies", cls=Noun)
def command() -> None:
    """Show, set and remove policies of a namespace or topic, such as retention, quotas and rates.

    WHERE is a namespace (tenant/namespace) or a topic, by its full name (persistent://tenant/namespace/name). A policy
    of a topic overrides that of its namespace, which overrides the broker's setting. `quire policies list` explains
    each policy. NAME is a name from that list, or the name in REST's paths.

    \b
    Examples:
      quire policies list retention
      quire policies get public/default
      quire policies set public/default retention time=7d size=10GiB
      quire policies set public/default message-ttl 3d
      quire policies set persistent://public/default/orders publish-rate messages=1000
      quire policies remove public/default message-ttl
    """


name_argument = click.argument("name", shell_complete=_complete_names)


@command.command("list")
@click.argument("name", required=False, shell_complete=_complete_names)
@json_option
def list_policies(name: str | None, as_json: bool) -> None:
    """Explain policy NAME, or all: its meaning, the form of its value, and whether namespaces and topics have it.

    A value is a word, or KEY=VALUE words: fields that are not given have their defaults. TIME is a number with ms, s,
    m, h, d or w, SIZE one with KiB, MiB, GiB or TiB. REST's JSON is accepted, too.

    \b
    Examples:
      quire policies list
      quire policies list backlog-quota
    """
    chosen = policies().values() if name is None else [policy_of(name)]
    Answer([_described(one) for one in chosen], *(line for one in chosen for line in _explained(one))).say(
        as_json
    )


def _described(policy: Policy) -> dict[str, str]:
    row = policy.row
    return {
        "name": policy.name,
        "about": policy.about,
        "value": policy.form,
        "json": policy.json_form,
        "namespace": row.word,
        "topic": row.topic_word,
    }


def _explained(policy: Policy) -> Iterator[str]:
    row = policy.row
    levels = [level for level, word in (("namespace", row.word), ("topic", row.topic_word)) if word]
    paths = dict.fromkeys(word for word in (row.word, row.topic_word) if word)
    query = f"?backlogQuotaType={policy.quota}" if policy.quota else ""
    yield f"{policy.name}  ({', '.join(levels)})"
    yield f"  {policy.about}."
    yield f"  value  {policy.form}"
    yield f"  REST   {', '.join(f'…/{word}{query}' for word in paths)}: {policy.json_form}"
    yield ""


@command.verb("get")
@where_argument
@click.argument("name", required=False, shell_complete=_complete_names)
def get_policies(admin: Admin, where: str, name: str | None) -> Answer:
    """Show policy NAME of WHERE, or all: the effective value, and the level that sets it.

    The level is topic, namespace, or broker for the broker's setting. For one policy, and with --json, the own value of
    WHERE is shown as well; an empty value is not set.

    \b
    Examples:
      quire policies get persistent://public/default/orders
      quire policies get public/default retention --json
    """
    chosen = list(_of_level(_check(where))) if name is None else [policy_of(name)]
    for one in chosen:
        one.word(where)
    path = topic_name.path(where) if "://" in where else topic_name.escaped(*where.split("/"))
    kind = "topics" if "://" in where else "namespaces"
    answer = admin.get(f"/quire/v1/{kind}/{path}/policies")
    found = {one.name: _state(answer, one, where) for one in chosen}
    if name is not None:
        (policy,), (state,) = chosen, found.values()
        own, effective = (policy_values.show(policy.row, state[one]) for one in ("own", "effective"))
        return Answer(state, {"own": own, "effective": effective, "from": state["source"]})
    # A terminal wraps such lines, and would cut off a wide table.
    lines = {one.name: _line(**found[one.name], policy=one) for one in chosen}
    return Answer(found, {"policy": f"{'from':<9}  value", **lines})


def _line(policy: Policy, own: Any, effective: Any, source: str) -> str:
    return f"{source:<9}  {policy_values.show(policy.row, effective if own is None else own)}"


def _state(answer: Mapping[str, Any], policy: Policy, where: str) -> dict[str, Any]:
    parts = {"own": "prescribed", "effective": "applied", "source": "sources"}
    return {name: policy.of(answer[part], where) for name, part in parts.items()}


@command.verb("set")
@where_argument
@name_argument
@click.argument("value", nargs=-1, required=True, shell_complete=_complete_values)
def set_policy(admin: Admin, where: str, name: str, value: tuple[str, ...]) -> Answer:
    """Set policy NAME of WHERE to VALUE, which replaces the former value as a whole.

    `quire policies list NAME` describes VALUE: a word, KEY=VALUE words or REST's JSON. A number without a unit is
    REST's number.

    \b
    Examples:
      quire policies set public/default retention time=7d size=unlimited
      quire policies set public/default backlog-quota limit-size=10GiB action=producer_exception
      quire policies set public/default deduplication true
      quire policies set public/default retention '{"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}'
    """
    for word in value:
        if word.startswith("-") and not word.startswith(NEGATIVE):
            raise click.NoSuchOption(word, ctx=click.get_current_context())
    policy = policy_of(name)
    path = policy.path(_check(where))
    try:
        parsed = policy_values.parse(policy.row, value)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{policy.name} cannot be {' '.join(value)!r}: {error}; give {policy.form} ({policy.about})"
        ) from None
    admin.post(path, parsed)
    said = f"{policy.name} of {where}: {policy_values.show(policy.row, parsed)}"
    return done(said, where=where, policy=policy.name, value=parsed)


set_policy.context_settings["ignore_unknown_options"] = True  # -1 is a value


@command.verb("remove")
@where_argument
@name_argument
def remove_policy(admin: Admin, where: str, name: str) -> Answer:
    """Remove policy NAME of WHERE, so that the level above applies: the namespace, or the broker's setting.

    \b
    Example:
      quire policies remove persistent://public/default/orders retention
    """
    policy = policy_of(name)
    admin.delete(policy.path(_check(where)))
    return done(f"removed {policy.name} of {where}", where=where, policy=policy.name, removed=True)
