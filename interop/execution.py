"""A server that runs modules, and the doors by which they are called."""

import json
import os
import re
import subprocess
import urllib.parse
from types import SimpleNamespace
from xml.sax.saxutils import escape

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import grpc
import urllib3

from conftest import REGION, binary, connect, examples
from modules import ROOT
from rpc_interface import Interface, bearer

DOCUMENT = ROOT / "docs" / "execute.md"
SECONDS = 120

# The namespace that NVMe shows, too.
NAMESPACE, NSID = "values", 2
# Doors whose refusals are a status, and no words.
NVME = ("nvme", "vfio-user")


class Refused(Exception):
    """A call that came to nothing: what the door said."""


class Place:
    """A server, and whoever calls it."""

    def __init__(self, server, socket):
        """`socket` is where it serves vfio-user."""
        self.server, self.socket = server, socket
        self.keys = server.keys
        self.s3 = connect(
            SimpleNamespace(endpoint=server.endpoint, access_key=self.keys[0], secret_key=self.keys[1], region=REGION)
        )
        self.http = urllib3.PoolManager()
        self.channel = grpc.insecure_channel(server.rpc, options=[("grpc.use_local_subchannel_pool", 1)])
        self.number = 0

    def close(self):
        self.s3.close()
        self.http.clear()
        self.channel.close()

    def put(self, key, body, bucket=NAMESPACE):
        self.s3.put_object(Bucket=bucket, Key=key, Body=body)
        return key

    def get(self, key, bucket=NAMESPACE):
        return self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()

    def admin(self, *words):
        """`forebay admin`, as the directory's owner."""
        return self.lines("admin", *words, "--dir", self.server.directory, "--json")

    def lines(self, *words):
        return [json.loads(line) for line in self.forebay(*words).splitlines()]

    def forebay(self, *words, keys=None):
        access_key, secret_key = keys or self.keys
        env = {**os.environ, "FOREBAY_ACCESS_KEY": access_key, "FOREBAY_SECRET_KEY": secret_key,
               "FOREBAY_ENDPOINT": f"http://{self.server.rpc}"}
        done = subprocess.run([binary(), *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, env=env,
                              timeout=SECONDS)
        if done.returncode != 0:
            raise Refused(done.returncode, done.stderr.decode(errors="replace"))
        return done.stdout

    def allow(self, wasm, function=None, **where):
        """Allows a module: the name and the number by which it is called."""
        self.number += 1
        name = f"m{self.number}"
        words = ["module", "add", wasm, "--name", name, "--id", self.number]
        for option, value in {"function": function, **where}.items():
            words += [f"--{option}", value] if value else []
        self.admin(*words)
        return SimpleNamespace(name=name, number=self.number, function=function)

    # The doors: each runs a module over keys of the namespace and gives back what it wrote.

    def by_cli(self, module, keys, words=(), keys_of=None, deadline=None):
        inputs = [f"fb://{NAMESPACE}/{key}" for key in keys]
        flags = ["--deadline", deadline] if deadline else []
        return self.forebay("exec", module.name, *inputs, *flags, "--", *words, keys=keys_of)

    def by_grpc(self, module, keys, words=(), keys_of=None, deadline=None):
        client = Interface(self.channel, bearer(*(keys_of or self.keys)))
        inputs = [client.message("ExecuteInput", namespace=NAMESPACE, key=key.encode()) for key in keys]
        arguments = b"".join(word.encode() + b"\0" for word in words)
        try:
            parts = list(client.call("Execution.Execute", name=module.name, inputs=inputs, arguments=arguments,
                                     capacity=64 << 20, deadline_ms=deadline or 0))
        except grpc.RpcError as error:
            raise Refused(error.code(), error.details()) from error
        output = b"".join(part.data for part in parts)
        assert parts[-1].executed.length == len(output)
        return output

    def by_s3(self, module, keys, words=(), keys_of=None, more="", headers=(), deadline=None):
        """`POST ?execute`, signed as boto3 signs."""
        arguments = "".join(f"<Argument>{escape(word)}</Argument>" for word in words)
        others = "".join(f"<Input><Key>{escape(key)}</Key></Input>" for key in keys[1:])
        time = f"<DeadlineMilliseconds>{deadline}</DeadlineMilliseconds>" if deadline else ""
        body = f"<ExecuteRequest><Module>{module.name}</Module>{arguments}{others}{more}{time}</ExecuteRequest>".encode()
        url = f"{self.server.endpoint}/{NAMESPACE}/{urllib.parse.quote(keys[0])}?execute"
        request = botocore.awsrequest.AWSRequest("POST", url, data=body, headers=dict(headers))
        credentials = botocore.credentials.Credentials(*(keys_of or self.keys))
        botocore.auth.S3SigV4Auth(credentials, "s3", REGION).add_auth(request)
        answer = self.http.request("POST", url, body=body, headers=dict(request.headers), retries=False, timeout=SECONDS)
        if answer.status != 200:
            raise Refused(answer.status, answer.data.decode(errors="replace"))
        if not more:
            assert int(answer.headers["x-forebay-output-length"]) == len(answer.data)
        return answer.data

    def by_nvme(self, module, keys, words=(), keys_of=None):
        assert len(keys) == 1 and keys_of is None
        return self.forebay("nvme", "exec", f"kv://{self.server.nvme}/{NSID}", keys[0], module.number, "--output", "16MiB",
                            "--", *words)

    def by_vfio_user(self, module, keys, words=(), keys_of=None):
        """Words and result by the same memory, or, where the words are `inline NUMBER`, that number in the command."""
        assert len(keys) == 1 and keys_of is None
        command = [examples() / "vfio_user_execute", self.socket, NSID, keys[0], module.number, *words]
        done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
        if done.returncode != 0:
            raise Refused(done.returncode, done.stderr.decode(errors="replace"))
        return done.stdout

    @property
    def doors(self):
        return {"cli": self.by_cli, "grpc": self.by_grpc, "s3": self.by_s3, "nvme": self.by_nvme,
                "vfio-user": self.by_vfio_user}


def block(language):
    """The document's example in this language."""
    found = re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)
    assert len(found) == 1, f"{len(found)} examples in {language}"
    return found[0]


def run(*words):
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
