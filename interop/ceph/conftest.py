"""Gateways over a throwaway Ceph, and clients that record what they are answered."""

import subprocess
import uuid

import pytest

from conftest import binary
from gateways import Gateways
from history import Recorder


@pytest.fixture
def gateways(ceph, scratch):
    """Gateways over a place of their own in the cluster that all tests share."""
    made = Gateways(ceph, scratch, f"t{uuid.uuid4().hex[:8]}")
    yield made
    made.stop()


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture(scope="session")
def caching():
    """Flags that have a gateway keep values in memory and ask before each hit whether they are still so."""
    said = subprocess.run([binary(), "serve", "--help"], capture_output=True, text=True, check=True).stdout
    if "--cache-strict" not in said:
        pytest.skip("this binary has no cache over a cluster")
    return ["--cache-memory", "64MiB", "--cache-strict"]
