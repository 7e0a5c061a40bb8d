"""Servers with a gRPC door, and clients for their identities."""

import mmap
import subprocess
import uuid

import grpc
import pytest

from conftest import binary, examples, folder
from rpc_interface import Interface, bearer
from server import servers

MEMORY_BYTES = 1 << 20


@pytest.fixture(scope="module")
def scratch():
    with folder() as one:
        yield one


@pytest.fixture(scope="module")
def serve(scratch):
    with servers(binary(), scratch) as start:
        yield start


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
def exposed(scratch):
    """`exposed(opened, fabric)`: memory that another process exposes on a link of a session, and what it is called there."""
    processes = []

    def expose(opened, fabric):
        file = scratch / f"memory-{fabric}"
        file.write_bytes(bytes(MEMORY_BYTES))
        address = next(path.address for path in opened.paths if path.fabric == fabric)
        command = [str(examples() / "exposed_file"), fabric, address, opened.session.hex(), opened.key.hex(), str(file)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        ready, *numbers = process.stdout.readline().split()
        assert ready == "ready"
        stag, base, length, link = map(int, numbers)
        told = {"fabric": fabric, "stag": stag, "base": base, "length": length, "link": link}
        with open(file, "r+b") as opened_file:
            return mmap.mmap(opened_file.fileno(), MEMORY_BYTES), told

    yield expose
    for process in processes:
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.fixture
def namespace(root):
    name = f"n-{uuid.uuid4().hex[:12]}"
    root.call("Admin.CreateNamespace", name=name)
    return name
