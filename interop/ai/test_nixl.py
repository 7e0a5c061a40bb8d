"""NIXL's OBJ back end: memory to object and back, at offsets, and the look-up of keys."""

import time

import numpy
import pytest
from nixl_cu12._api import nixl_agent, nixl_agent_config

MIB = 1 << 20
PATIENCE_SECONDS = 60


@pytest.fixture
def agent(s3, bucket):
    agent = nixl_agent("interop", nixl_agent_config(backends=[]))
    agent.create_backend("OBJ", {
        "access_key": s3.access_key, "secret_key": s3.secret_key, "region": s3.region,
        "bucket": bucket, "endpoint_override": s3.endpoint, "scheme": "http",
        "use_virtual_addressing": "false", "req_checksum": "required",
    })
    return agent


def move(agent, operation, memory, key, length, offset=0):
    """One transfer between a slice of host memory and an object."""
    address = memory.ctypes.data
    local = agent.register_memory([(address, length, 0, "")], "DRAM", backends=["OBJ"])
    remote = agent.register_memory([(0, offset + length, 7, key)], "OBJ", backends=["OBJ"])
    handle = agent.initialize_xfer(
        operation,
        agent.get_xfer_descs([(address, length, 0)], "DRAM"),
        agent.get_xfer_descs([(offset, length, 7)], "OBJ"),
        "interop",
    )
    state = agent.transfer(handle)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while state == "PROC":
        assert time.monotonic() < deadline
        state = agent.check_xfer_state(handle)
    agent.release_xfer_handle(handle)
    agent.deregister_memory(remote, backends=["OBJ"])
    agent.deregister_memory(local, backends=["OBJ"])
    return state


@pytest.mark.parametrize("size", [4096, MIB, 20 * MIB])
def test_write_read(agent, bucket, plain, data, size):
    source = numpy.frombuffer(bytearray(data(size)), dtype=numpy.uint8)
    assert move(agent, "WRITE", source, "kv/block", size) == "DONE"
    assert plain.get_object(Bucket=bucket, Key="kv/block")["Body"].read() == data(size)
    target = numpy.zeros(size, dtype=numpy.uint8)
    assert move(agent, "READ", target, "kv/block", size) == "DONE"
    assert target.tobytes() == data(size)
    part = numpy.zeros(1000, dtype=numpy.uint8)
    assert move(agent, "READ", part, "kv/block", 1000, offset=3000) == "DONE"
    assert part.tobytes() == data(size)[3000:4000]


def test_look_up(agent, bucket, plain):
    plain.put_object(Bucket=bucket, Key="there", Body=b"x" * 64)
    found = agent.query_memory([(0, 64, 1, "there"), (0, 64, 2, "not there")], "OBJ", mem_type="OBJ")
    assert found[0] is not None and found[1] is None
