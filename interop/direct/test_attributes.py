"""What is kept beside an object is the same to everybody, whichever path its bytes took."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

MIB = 1 << 20
KEPT = {"content-type": "text/x-forebay", "cache-control": "max-age=60"}


@pytest.fixture
def s3api():
    """The AWS CLI's answer."""

    def ask(server, *words):
        access_key, secret_key = server.keys
        env = {**os.environ, "AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
        program = pathlib.Path(sys.executable).parent / "aws"
        command = [str(program), "--endpoint-url", server.endpoint, "--output", "json", "s3api", *map(str, words)]
        done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout or "{}")

    return ask


def looks(s3api, server, key):
    head = s3api(server, "head-object", "--bucket", "things", "--key", key)
    del head["LastModified"]
    tags = s3api(server, "get-object-tagging", "--bucket", "things", "--key", key)
    return head, sorted((tag["Key"], tag["Value"]) for tag in tags["TagSet"])


@pytest.mark.parametrize("path", ["shm", "iwarp", "http"])
def test_an_object_looks_as_if_the_aws_cli_had_put_it(serve, namespace, forebay, s3api, scratch, data, path):
    server = serve("--s3-etag", "crc64nvme")
    namespace(server, "things")
    file = scratch / "file"
    file.write_bytes(data(100_000))
    flags = [word for name, value in KEPT.items() for word in (f"--{name}", value)]
    s3api(
        server, "put-object", "--bucket", "things", "--key", "by-aws", "--body", file, *flags,
        "--metadata", "origin=lab,run=7", "--tagging", "stage=raw%20data&empty=",
    )
    ours = [*flags, "--metadata", "Origin=lab", "--metadata", "run=7", "--tag", "stage=raw data", "--tag", "empty="]
    assert forebay(server).copy(file, "fb://things/ours", "--path", path, *ours) == path
    expected = looks(s3api, server, "by-aws")
    assert looks(s3api, server, "ours") == expected
    assert expected[0]["ContentType"] == "text/x-forebay" and expected[0]["Metadata"] == {"origin": "lab", "run": "7"}
    assert expected[1] == [("empty", ""), ("stage", "raw data")]
    shown = json.loads(forebay(server)("stat", "--json", "fb://things/ours"))
    assert (shown["content_type"], shown["metadata"]) == ("text/x-forebay", {"origin": "lab", "run": "7"})

    # In parts, too; and a value replaces an object whole.
    big = scratch / "big"
    big.write_bytes(data(MIB * 17))
    assert forebay(server).copy(big, "fb://things/big", "--path", path, *ours) == path
    head, tags = looks(s3api, server, "big")
    assert (head["ContentType"], head["Metadata"], tags) == (
        expected[0]["ContentType"], expected[0]["Metadata"], expected[1],
    )
    assert forebay(server).copy(file, "fb://things/ours", "--path", path) == path
    head, tags = looks(s3api, server, "ours")
    assert (head["ContentType"], head["Metadata"], tags) == ("binary/octet-stream", {}, [])


def test_what_s3_refuses_is_refused_by_every_path(serve, namespace, scratch, forebay):
    server = serve()
    namespace(server, "things")
    file = scratch / "file"
    file.write_bytes(b"x")
    for path in ["shm", "iwarp", "http"]:
        # What no header can be is told before anybody is asked.
        for code, flags in [
            (1, ["--metadata", f"long={'x' * 2048}"]),
            (1, ["--tag", "aws:reserved=1"]),
            (2, ["--metadata", "a b=1"]),
        ]:
            with pytest.raises(AssertionError, match=f"exit {code}"):
                forebay(server).copy(file, "fb://things/file", "--path", path, *flags)
    # Longer than a message of the direct path: goes the way that takes it, and is refused there.
    with pytest.raises(AssertionError, match="MetadataTooLarge"):
        forebay(server).copy(file, "fb://things/file", "--metadata", f"long={'x' * 5000}")
