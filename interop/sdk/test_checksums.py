"""The five checksums: in a header or a trailer, verified, stored, returned; and Content-MD5."""

import base64
import hashlib
import uuid
import zlib

import pytest
from botocore import httpchecksum

from conftest import connect

MIB = 1 << 20
ALGORITHMS = ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]


def crc(body, polynomial, width):
    """Any reflected CRC with all-ones start and end, slowly: an oracle that shares no code."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (polynomial if byte & 1 else 0)
        table.append(byte)
    ones = (1 << width) - 1
    value = ones
    for byte in body:
        value = table[(value ^ byte) & 255] ^ (value >> 8)
    return (value ^ ones).to_bytes(width // 8, "big")


def checksum(algorithm, body):
    value = {
        "CRC32": lambda: zlib.crc32(body).to_bytes(4, "big"),
        "CRC32C": lambda: crc(body, 0x82F63B78, 32),
        "CRC64NVME": lambda: crc(body, 0x9A6C9329AC4BC9B5, 64),
        "SHA1": lambda: hashlib.sha1(body).digest(),
        "SHA256": lambda: hashlib.sha256(body).digest(),
    }[algorithm]()
    return base64.b64encode(value).decode()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_header(client, bucket, data, refused, algorithm):
    body, field = data(100_000), f"Checksum{algorithm}"
    value = checksum(algorithm, body)
    assert client.put_object(Bucket=bucket, Key="k", Body=body, **{field: value})[field] == value
    got = client.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (got["Body"].read(), got[field]) == (body, value)
    assert client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")[field] == value
    assert field not in client.head_object(Bucket=bucket, Key="k")
    with refused("BadDigest", 400):
        client.put_object(Bucket=bucket, Key="k", Body=body, **{field: checksum(algorithm, b"no")})
    assert client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")[field] == value


def summing(algorithm, right=True):
    """The checksum as botocore wants it, from the oracle here; or of other bytes than it is shown."""

    class Sum(httpchecksum.BaseChecksum):
        def __init__(self):
            self.seen = bytearray()

        def update(self, chunk):
            self.seen += chunk

        def digest(self):
            return base64.b64decode(checksum(algorithm, bytes(self.seen) if right else b"no"))

    return Sum


@pytest.fixture
def teach(monkeypatch):
    """`teach(algorithm, sum)`: botocore sums so. Of itself it knows CRC32C and CRC64NVME only where awscrt is installed."""

    def known(algorithm, how):
        monkeypatch.setitem(httpchecksum._CHECKSUM_CLS, algorithm.lower(), how)
        names = list(httpchecksum._CHECKSUM_CLS)
        monkeypatch.setattr(httpchecksum, "_SUPPORTED_CHECKSUM_ALGORITHMS", names)

    return known


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_in_trailer(secured, sent, refused, data, teach, algorithm):
    """Over TLS botocore sends every body as aws-chunked with the checksum behind it, and signs neither."""
    if algorithm.lower() not in httpchecksum._CHECKSUM_CLS:
        teach(algorithm, summing(algorithm))
    client, bucket = connect(secured), f"t-{uuid.uuid4().hex[:16]}"
    client.create_bucket(Bucket=bucket)
    body, field = data(MIB + 70_005), f"Checksum{algorithm}"
    value, requests = checksum(algorithm, body), sent(client)

    def put(body):
        requests.clear()
        answer = client.put_object(Bucket=bucket, Key="k", Body=body, ChecksumAlgorithm=algorithm)
        headers = {name.lower(): text(value) for name, value in requests[-1].headers.items()}
        assert headers["x-amz-trailer"] == f"x-amz-checksum-{algorithm.lower()}"
        assert headers["content-encoding"] == "aws-chunked"
        assert headers["x-amz-content-sha256"] == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
        assert f"x-amz-checksum-{algorithm.lower()}" not in headers and "content-length" not in headers
        return answer

    assert put(body)[field] == value
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head[field], head["ContentLength"]) == (value, len(body))
    got = client.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (got["Body"].read(), got[field]) == (body, value)
    assert "aws-chunked" not in got.get("ContentEncoding", "")
    # One that does not match what came before it.
    teach(algorithm, summing(algorithm, right=False))
    with refused("BadDigest", 400):
        put(b"other")
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head[field], head["ContentLength"]) == (value, len(body))


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def test_content_md5(client, bucket, refused):
    right = base64.b64encode(hashlib.md5(b"x").digest()).decode()
    client.put_object(Bucket=bucket, Key="k", Body=b"x", ContentMD5=right)
    with refused("BadDigest", 400):
        client.put_object(Bucket=bucket, Key="k", Body=b"y", ContentMD5=right)
    with refused("InvalidDigest", 400):
        client.put_object(Bucket=bucket, Key="k", Body=b"y", ContentMD5="short")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_composite_of_parts(client, bucket, data, algorithm):
    if algorithm == "CRC64NVME":
        pytest.skip("CRC64NVME exists for whole objects only")
    field = f"Checksum{algorithm}"
    bodies = [data(5 * MIB, 1), data(1000, 2)]
    # The pure oracle is slow: it is asked about the small part alone.
    whole = algorithm in ("SHA1", "SHA256", "CRC32")
    made = client.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm=algorithm)
    parts = []
    for number, body in enumerate(bodies, 1):
        answer = client.upload_part(
            Bucket=bucket, Key="k", UploadId=made["UploadId"], PartNumber=number, Body=body,
            **({"ChecksumAlgorithm": algorithm} if whole else {field: checksum(algorithm, body)}),
        )
        parts.append({"PartNumber": number, "ETag": answer["ETag"], field: answer[field]})
    done = client.complete_multipart_upload(
        Bucket=bucket, Key="k", UploadId=made["UploadId"], MultipartUpload={"Parts": parts}
    )
    digests = b"".join(base64.b64decode(part[field]) for part in parts)
    assert done[field] == f"{checksum(algorithm, digests)}-2"
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"".join(bodies)


def test_full_object_of_parts(client, bucket, data, refused):
    bodies = [data(5 * MIB, 1), data(70_000, 2)]
    value = checksum("CRC32", b"".join(bodies))

    def upload(final):
        made = client.create_multipart_upload(
            Bucket=bucket, Key="k", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT"
        )["UploadId"]
        parts = []
        for number, body in enumerate(bodies, 1):
            answer = client.upload_part(
                Bucket=bucket, Key="k", UploadId=made, PartNumber=number, Body=body,
                ChecksumAlgorithm="CRC32",
            )
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        return client.complete_multipart_upload(
            Bucket=bucket, Key="k", UploadId=made, MultipartUpload={"Parts": parts},
            ChecksumCRC32=final, ChecksumType="FULL_OBJECT",
        )

    with refused("BadDigest", 400):
        upload(checksum("CRC32", b"no"))
    assert upload(value)["ChecksumCRC32"] == value
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head["ChecksumCRC32"], head["ChecksumType"]) == (value, "FULL_OBJECT")
