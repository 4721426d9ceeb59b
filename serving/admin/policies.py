"""Policies over REST, of a namespace (`/admin/v2/namespaces/…`) and of a topic (`/admin/v2/persistent/…`).

`policy_json` has the rows, a policy each, and their JSON. `DELETE` returns a policy to the level above: the namespace,
at last the broker's default. A GET says what this level prescribes, 204 for nothing, as Pulsar does (its clients read
null as zero); a topic's with `?applied=true` says what holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from quire.metadata.records import Policies
from quire.runtime.errors import ConfigurationError
from quire.serving.admin.policy_json import POLICIES, QUOTAS, PolicyJson, quotas_shown
from quire.serving.admin.requests import flag, json_of, natural, no_content, topic_of
from quire.serving.broker import Broker
from quire.serving.names import TopicName

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
REFRESH = "/quire/v1/policies/{tenant}/{namespace}"
"""What one broker asks of the others when it has changed a policy: to heed it before the change is answered."""

# -- where policies are kept ---------------------------------------------------------------------------

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Change = Callable[[Policies], Policies]


@dataclass(frozen=True)
class _Level:
    """Namespaces or topics: how the policies that a request is about are read and changed."""

    read: Callable[[web.Request], Awaitable[Any]]
    change: Callable[[web.Request, Change], Awaitable[None]]


def _of_namespaces(broker: Broker) -> _Level:
    async def read(request: web.Request) -> Policies:
        part = request.match_info
        return (await broker.namespaces.get(part["tenant"], part["namespace"])).policies

    async def change(request: web.Request, change: Change) -> None:
        part = request.match_info
        await broker.admin.policies.change_namespace(part["tenant"], part["namespace"], change)

    return _Level(read, change)


def _of_topics(broker: Broker) -> _Level:
    async def read(request: web.Request) -> Any:
        topic = topic_of(request)
        if flag(request, "applied"):
            return await broker.admin.policies.applied(topic)
        return await broker.admin.policies.of_topic(topic)

    async def change(request: web.Request, change: Change) -> None:
        await broker.admin.policies.change_topic(topic_of(request), change)

    return _Level(read, change)


def routes(broker: Broker) -> list[web.RouteDef]:
    async def refresh(request: web.Request) -> web.Response:
        part = request.match_info
        topic = request.query.get("topic")
        name = None if topic is None else TopicName.parse(topic)
        await broker.admin.policies.refresh(part["tenant"], part["namespace"], name)
        return no_content()

    namespaces, topics = _of_namespaces(broker), _of_topics(broker)
    found = [web.put(REFRESH, refresh)]
    found += _quota_routes(NAMESPACE, namespaces) + _quota_routes(TOPIC, topics)
    for policy in POLICIES:
        if policy.word:
            found += _routes_of(f"{NAMESPACE}/{policy.word}", namespaces, policy)
        if policy.topic_word:
            found += _routes_of(f"{TOPIC}/{policy.topic_word}", topics, policy)
    return found


def _routes_of(path: str, level: _Level, policy: PolicyJson) -> list[web.RouteDef]:
    async def get(request: web.Request) -> web.Response:
        value = getattr(await level.read(request), policy.field)
        return no_content() if value is None else web.json_response(policy.shape.show(value))

    async def put(request: web.Request) -> web.Response:
        return await _put(request, level, policy)

    async def delete(request: web.Request) -> web.Response:
        return await _delete(request, level, policy)

    return [web.get(path, get), web.post(path, put), web.put(path, put), web.delete(path, delete)]


def _quota_routes(parent: str, level: _Level) -> list[web.RouteDef]:
    def meant(request: web.Request) -> PolicyJson:
        kind = request.query.get("backlogQuotaType", "destination_storage")
        if kind not in QUOTAS:
            raise ConfigurationError(f"{kind!r} is not a type of backlog quota: use {' or '.join(QUOTAS)}")
        return QUOTAS[kind]

    async def get(request: web.Request) -> web.Response:
        quotas = quotas_shown(await level.read(request))
        return no_content() if quotas is None else web.json_response(quotas)

    async def get_map(request: web.Request) -> web.Response:
        return web.json_response(quotas_shown(await level.read(request)) or {})

    async def put(request: web.Request) -> web.Response:
        return await _put(request, level, meant(request))

    async def delete(request: web.Request) -> web.Response:
        return await _delete(request, level, meant(request))

    path = f"{parent}/backlogQuota"
    return [
        web.get(path, get),
        web.get(f"{path}Map", get_map),
        web.post(path, put),
        web.put(path, put),
        web.delete(path, delete),
    ]


async def _put(request: web.Request, level: _Level, policy: PolicyJson) -> web.Response:
    value = policy.shape.parse(await _value(request, policy))
    await level.change(request, lambda all: replace(all, **{policy.field: value}))
    return no_content()


async def _delete(request: web.Request, level: _Level, policy: PolicyJson) -> web.Response:
    await level.change(request, lambda all: replace(all, **{policy.field: None}))
    return no_content()


async def _value(request: web.Request, policy: PolicyJson) -> Any:
    """The body; some of Pulsar's tools put a single number into the query, under the path's word."""
    named = request.query.get(policy.topic_word) if policy.topic_word else None
    return await json_of(request) if named is None else natural(named, f"{policy.topic_word} in the query")
