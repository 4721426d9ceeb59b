"""Fixture `zookeeper` for all tests in this directory."""

from tests.cluster.zookeeper import zookeeper  # noqa: F401
