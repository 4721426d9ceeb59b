"""Policies on the command line: rows of REST have names, explanations, and values that are read as they are shown."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from quire.cli import policy_values
from quire.cli.policies import Policy, policies, policy_of
from quire.metadata.records import Policies, decode
from quire.runtime.errors import ConfigurationError
from quire.serving.admin.policy_json import POLICIES, QUOTAS, namespace_policies_shown
from tests.serving.admin.test_policy_json import KEPT

SHOWN = namespace_policies_shown(decode(Policies, KEPT, "namespace"))
"""A value of each policy."""


def test_every_row_is_a_policy_with_a_name_and_an_explanation() -> None:
    every = policies()
    rows = [one.row for one in every.values()]
    assert all(row in rows for row in (*POLICIES, *QUOTAS.values())) and len(rows) == len(POLICIES) + len(
        QUOTAS
    )
    assert [name for name, one in every.items() if not one.about] == []
    assert "retention" in every and "message-ttl" in every and "max-producers-per-topic" in every
    named = [name for one in every.values() for name in one.names]
    assert len(named) == len(set(named)), "two policies have a name in common"


@pytest.mark.parametrize("policy", policies().values(), ids=lambda one: one.name)
def test_a_value_is_read_as_it_is_shown(policy: Policy) -> None:
    value = policy.of(SHOWN, "public/default")
    assert value is not None
    said = policy_values.show(policy.row, value)
    shape = policy.row.shape
    assert shape.parse(policy_values.parse(policy.row, shlex.split(said))) == shape.parse(value), said
    assert policy_values.form(policy.row)


@pytest.mark.parametrize(
    ("name", "words", "json"),
    [
        ("message-ttl", "7d", 604_800),
        ("message-ttl", "1w", 604_800),
        ("message-ttl", "90", 90),
        ("message-ttl", "1.5h", 5400),
        ("message-ttl", "off", 0),
        ("subscription-expiration-time", "2h", 120),
        ("max-message-size", "1MiB", 1 << 20),
        ("max-message-size", "64K", 64 << 10),
        ("max-message-size", "1kB", 1000),
        ("max-producers-per-topic", "5", 5),
        ("max-producers-per-topic", "unlimited", 0),
        ("deduplication", "on", True),
        ("deduplication", "false", False),
        ("schema-compatibility-strategy", "backward-transitive", "BACKWARD_TRANSITIVE"),
        ("retention", "time=7d size=10GiB", {"retentionTimeInMinutes": 10_080, "retentionSizeInMB": 10_240}),
        ("retention", "time=-1 size=unlimited", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        ("retention", "retentionTimeInMinutes=5 size=5", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}),
        ("publish-rate", "messages=1000 bytes=10M", {
            "publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 10 << 20
        }),
        ("dispatch-rate", "messages=10 period=1m", {"dispatchThrottlingRateInMsg": 10, "ratePeriodInSecond": 60}),
        ("backlog-quota", "limit-size=10G policy=producer_exception", {
            "limitSize": 10 << 30, "policy": "producer_exception"
        }),
        ("backlog-quota-message-age", "limit-time=1h", {"limitTime": 3600}),
        ("persistence", "write-quorum=3 ack-quorum=2", {"bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}),
        ("persistence", "storage=objects", {"storage": "objects"}),
        ("iceberg", "{}", {}),
        ("publish-rate", '{"publishThrottlingRateInMsg": 5}', {"publishThrottlingRateInMsg": 5}),
    ],
)  # fmt: skip
def test_words_become_the_json_of_rest(name: str, words: str, json: Any) -> None:
    given = [words] if words.startswith("{") else words.split()
    assert policy_values.parse(policy_of(name).row, given) == json


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("message-ttl", "soon", "'soon' is not a time"),
        ("message-ttl", "-1", "a number of seconds"),
        ("message-ttl", "100ms", "'100ms' is not a whole number of seconds"),
        ("max-producers-per-topic", "7d", "'7d' is not a number"),
        ("deduplication", "maybe", "'maybe' is not true or false"),
        ("schema-compatibility-strategy", "guess", "'guess' is not one of ALWAYS_"),
        ("retention", "7d", "'7d' is not KEY=VALUE"),
        ("retention", "tme=7d size=1GiB", "did you mean time"),
        ("retention", "zz=7d", "use time, size"),
        ("retention", "time=90s size=1", "'90s' is not a whole number of minutes"),
        ("retention", "time=7d size=10kB", "'10kB' is not a whole number of MiB"),
        ("retention", "time=7d time=8d", "time is given twice"),
        ("retention", "time=7d", "give size, too"),
        ("retention", "{", "is not JSON"),
        ("persistence", "write-quorum=1 ack-quorum=2", "at least ack quorum"),
        ("backlog-quota", "limit-size=1 action=panic", "'panic' is not one of"),
        ("backlog-quota", "action=producer_exception", "needs limitSize"),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(name: str, words: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        policy_values.parse(policy_of(name).row, [words] if words.startswith("{") else words.split())


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("messageTTL", "message-ttl"),
        ("message_ttl_in_seconds", "message-ttl"),
        ("maxProducers", "max-producers-per-topic"),
        ("max-producers", "max-producers-per-topic"),
        ("deduplicationEnabled", "deduplication"),
        ("backlogQuota", "backlog-quota"),
        ("backlog-quota-destination-storage", "backlog-quota"),
        ("schema_compatibility_strategy", "schema-compatibility-strategy"),
    ],
)
def test_the_names_of_rest_are_names_of_policies(said: str, name: str) -> None:
    assert policy_of(said).name == name


def test_a_wrong_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="no policy 'retenton'; did you mean retention"):
        policy_of("retenton")
    with pytest.raises(ConfigurationError, match="no policy 'ttl'; did you mean message-ttl"):
        policy_of("ttl")
    with pytest.raises(ConfigurationError, match="no policy 'zzz'; `quire policies list`"):
        policy_of("zzz")


def test_values_are_shown_with_units() -> None:
    def said(name: str, value: Any) -> str:
        return policy_values.show(policy_of(name).row, value)

    assert said("message-ttl", 0) == "off" and said("message-ttl", 5400) == "90m"
    assert said("max-producers-per-topic", 0) == "unlimited" and said("max-producers-per-topic", 3) == "3"
    assert (
        said("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 0}) == "time=unlimited size=0"
    )
    assert said("iceberg", {"catalog": "/my lake", "table": ""}) == "'catalog=/my lake'"
    assert said("iceberg", {"catalog": ""}) == "{}" and said("iceberg", None) == ""
    assert said("deduplication", True) == "true"
