"""Servers with a gRPC door, and clients for their identities."""

import uuid

import grpc
import pytest

from conftest import binary, folder
from rpc_interface import Interface, bearer
from server import Server

SPARE_FILES = 16


@pytest.fixture(scope="module")
def scratch():
    with folder() as one:
        yield one


@pytest.fixture(scope="module")
def serve(scratch):
    running = []

    def start(*flags):
        server = Server(binary(), scratch / f"data{len(running)}", flags=flags).start()
        running.append((server, server.open_files()))
        return server

    yield start
    for server, before in running:
        after = server.open_files()
        server.stop()
        assert after <= before + SPARE_FILES, f"{after} open files, {before} before the tests"


@pytest.fixture(scope="module")
def server(serve):
    return serve()


@pytest.fixture(scope="module")
def connect(server):
    """`connect(access_key, secret_key)`: the interface for an identity, root's without one."""
    channels = []

    def make(access_key=None, secret_key=None, token=None):
        channel = grpc.insecure_channel(server.rpc, options=[("grpc.use_local_subchannel_pool", 1)])
        channels.append(channel)
        keys = (access_key, secret_key) if access_key else server.keys
        return Interface(channel, token or bearer(*keys))

    yield make
    for channel in channels:
        channel.close()


@pytest.fixture(scope="module")
def root(connect):
    return connect()


@pytest.fixture
def tenant(root, connect):
    """Makes a tenant with a key: the interface for it."""

    def make():
        name = f"t-{uuid.uuid4().hex[:12]}"
        root.call("Admin.CreateTenant", name=name)
        key = root.call("Admin.CreateKey", tenant=name)
        identity = connect(key.access_key, key.secret_key)
        identity.name, identity.access_key = name, key.access_key
        return identity

    return make


@pytest.fixture
def namespace(root):
    name = f"n-{uuid.uuid4().hex[:12]}"
    root.call("Admin.CreateNamespace", name=name)
    return name
