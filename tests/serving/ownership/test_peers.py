"""What one broker refuses another is the same refusal there: the status and the sentence carry it."""

from __future__ import annotations

import json

import pytest

from quire.runtime.errors import (
    AlreadyExists,
    ConfigurationError,
    CorruptionError,
    InUse,
    NotFound,
    QuireError,
    Unavailable,
)
from quire.serving.admin.refusals import status_of
from quire.serving.model.ports import NotAllowed
from quire.serving.names import TopicName
from quire.serving.ownership.peers import error_of, topic_path


@pytest.mark.parametrize(
    "kind", [AlreadyExists, ConfigurationError, InUse, NotAllowed, NotFound, Unavailable]
)
def test_a_refusal_crosses_as_it_is(kind: type[QuireError]) -> None:
    error = error_of(status_of(kind("why")), json.dumps({"reason": "why"}))
    assert type(error) is kind
    assert str(error) == "why"


def test_what_failed_there_is_not_said_to_work_when_tried_again() -> None:
    error = error_of(status_of(CorruptionError("it is damaged")), "")
    assert not isinstance(error, Unavailable)
    assert status_of(error) == 500


def test_a_name_is_one_part_of_a_path_whatever_is_in_it() -> None:
    name = TopicName.parse("persistent://t/n/a/b?c d")
    assert topic_path(name) == "/admin/v2/persistent/t/n/a%2Fb%3Fc%20d"
