"""The fixture `zookeeper` for every test of the cluster."""

from tests.cluster.zookeeper import zookeeper  # noqa: F401
