"""A real server for every test here."""

from tests.cluster.zookeeper import zookeeper  # noqa: F401
