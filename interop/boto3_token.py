"""What a user of the S3 door who asks by tokens would write: boto3 with one header more, and a helper that owns memory and link."""

import contextlib
import fcntl
import mmap
import os
import subprocess
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from conftest import examples


@contextlib.contextmanager
def memory(length):
    """A memfd that can no longer shrink or grow, and its bytes."""
    with os.fdopen(os.memfd_create("memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b") as file:
        file.truncate(length)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield file, mmap.mmap(file.fileno(), length)


class Helper:
    """crates/client/examples/s3_token.rs: a region of registered memory, and tokens for it."""

    def __init__(self, server, transport, memory):
        """`memory`: how many bytes the helper is to take, or the file (a memfd) whose bytes it is to use."""
        files = [] if isinstance(memory, int) else [memory.fileno()]
        wanted = f"fd:{files[0]}" if files else memory
        command = [examples() / "s3_token", server.endpoint, *server.keys, wanted, transport]
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=files
        )
        self.ready = self.process.stdout.readline().strip()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer and not answer.startswith("error"), f"{words}: {answer}"
        return answer

    def stop(self):
        self.process.stdin.close()
        code = self.process.wait(20)
        assert code == 0, f"the helper ended with {code}"


class Script:
    """What a user would write: boto3, and one header more."""

    def __init__(self, server, helper=None, checksums="when_required"):
        """`checksums`: of bodies. Unless it is told so, boto3 makes one of the empty body of a PUT, which the payload does not have."""
        access_key, secret_key = server.keys
        self.s3 = boto3.client(
            "s3", endpoint_url=server.endpoint, aws_access_key_id=access_key, aws_secret_access_key=secret_key,
            config=Config(
                retries={"total_max_attempts": 1}, s3={"addressing_style": "path"},
                request_checksum_calculation=checksums, response_checksum_validation=checksums,
            ),
        )
        self.helper = helper
        self.window = None
        if helper:
            self.s3.meta.events.register("before-sign.s3", self.add_token)

    def add_token(self, request, **_):
        if self.window is None:
            return
        url = urlsplit(request.url)
        asked = request.headers.get("Range", "-")
        token = self.helper.ask("token", request.method, url.path, url.query or "-", asked, *self.window)
        request.headers["x-amz-rdma-token"] = token

    def within(self, offset, length):
        """The payload of the next request is there."""
        self.window = (offset, length)
        return self


def headers(answer):
    return answer["ResponseMetadata"]["HTTPHeaders"]
