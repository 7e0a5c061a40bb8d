"""Objects to a GPU and back with a token: the memory is a memfd that CUDA has pinned, so the server writes where the GPU's copy engine
reads, and no byte passes through this program's own memory."""

import time

import pytest

from boto3_token import Helper, Script, headers, memory

MEMORY_BYTES = 64 << 20
VALUE_BYTES = 16 << 20
ROUNDS = 16


@pytest.fixture
def torch():
    module = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not module.cuda.is_available():
        pytest.skip("no GPU that CUDA can use")
    return module


@pytest.fixture
def pinned(torch):
    """A memfd, and a tensor of its bytes that CUDA moves without staging them."""
    with memory(MEMORY_BYTES) as (file, there):
        tensor = torch.frombuffer(there, dtype=torch.uint8)
        cuda = torch.cuda.cudart()
        assert int(cuda.cudaHostRegister(tensor.data_ptr(), MEMORY_BYTES, 0)) == 0
        assert tensor.is_pinned()
        yield file, tensor
        assert int(cuda.cudaHostUnregister(tensor.data_ptr())) == 0


@pytest.fixture(params=["shm", "iwarp"])
def parts(request, serve, namespace, pinned):
    server = serve()
    namespace(server, "tensors")
    file, tensor = pinned
    helper = Helper(server, request.param, file)
    assert helper.ready == f"ready {request.param}"
    yield tensor, Script(server, helper), Script(server)
    helper.stop()


def test_a_tensor_goes_from_a_gpu_to_an_object_and_back(torch, parts):
    tensor, script, plain = parts
    made = torch.randint(0, 256, (VALUE_BYTES,), dtype=torch.uint8, device="cuda")
    tensor[:VALUE_BYTES].copy_(made, non_blocking=True)
    torch.cuda.synchronize()
    script.within(0, VALUE_BYTES).s3.put_object(Bucket="tensors", Key="weights")
    body = plain.s3.get_object(Bucket="tensors", Key="weights")["Body"].read()
    assert body == made.cpu().numpy().tobytes()

    # Each to another place, so that none finds what the one before it left.
    places = [VALUE_BYTES * (1 + at % 3) for at in range(ROUNDS)]
    begun = time.monotonic()
    for at in places:
        tensor[at:at + VALUE_BYTES].zero_()
        got = script.within(at, VALUE_BYTES).s3.get_object(Bucket="tensors", Key="weights")
        assert got["Body"].read() == b""
        assert headers(got)["x-amz-rdma-bytes-transferred"] == str(VALUE_BYTES)
        there = tensor[at:at + VALUE_BYTES].to("cuda", non_blocking=True)
        assert torch.equal(there, made)
    took = time.monotonic() - begun
    print(f"{VALUE_BYTES * ROUNDS / took / 1e9:.2f} GB/s from an object to the GPU, cleared before and compared after")
