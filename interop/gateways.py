"""Gateways: servers without a state of their own, over one cluster."""

import contextlib
import json
import subprocess
import time
from types import SimpleNamespace

from conftest import binary, connect
from server import Server

# How long a client waits for an answer; a gateway gives up before.
PATIENCE = 90
SWEPT_SECONDS = 120
# The dead are known as such soon, and nobody reads what they left.
SOON = ["--ceph-lease", "3", "--ceph-grace", "1", "--ceph-patience", "5"]


class Gateways:
    """All over the same place of the same cluster."""

    def __init__(self, cluster, scratch, namespace):
        self.cluster, self.scratch, self.namespace = cluster, scratch, namespace
        self.servers = []

    def start(self, *flags, **where):
        place = self.cluster.flags(self.namespace)
        server = Server(binary(), self.scratch / f"gateway{len(self.servers)}", flags=[*place, *flags], **where)
        self.servers.append(server.start())
        return server

    def client(self, server, keys=None, **config):
        """A client of one gateway. They share the keys that the first one made."""
        access_key, secret_key = keys or self.servers[0].keys
        s3 = SimpleNamespace(
            endpoint=server.endpoint, access_key=access_key, secret_key=secret_key, region="us-east-1"
        )
        config = dict(connect_timeout=10, read_timeout=PATIENCE) | config
        return connect(s3, **config)

    def bucket(self, name, clients):
        """Makes a bucket through the first client. The other gateways hear of it at once and read of it moments later."""
        clients[0].create_bucket(Bucket=name)
        for client in clients[1:]:
            client.get_waiter("bucket_exists").wait(Bucket=name, WaiterConfig=dict(Delay=1, MaxAttempts=20))

    def stop(self):
        # Each, also where one does not end well.
        with contextlib.ExitStack() as stops:
            for server in self.servers:
                if server.process.poll() is None:
                    stops.callback(server.stop)


def patiently(client, call, deadline):
    """Until somebody knows that a gateway died while it joined parts, their target and they are busy."""
    while True:
        try:
            return call()
        except client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "SlowDown" or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def admin(server, *words):
    command = [str(binary()), "admin", *words, "--dir", str(server.directory), "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def scrub(server):
    """Has a gateway clean up now what it cleans up from time to time."""
    command = [binary(), "admin", "scrub", "--dir", server.directory]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)


def until(true, otherwise):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def clean(gateways, server, client, bucket):
    """What the dead left goes: the pool holds what is listed, and nothing once that is deleted."""
    listed = set()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        listed |= {one["Key"] for one in page.get("Contents", [])}
    place = f"{gateways.namespace}/{bucket}"
    # A gateway that died while it joined parts had made way for them: a record that has nothing, until the living undo that.
    deadline = time.monotonic() + SWEPT_SECONDS
    while (there := {name for space, name in gateways.cluster.objects() if space == place}) != listed:
        differs = f"only in the pool: {there - listed}, only listed: {listed - there}"
        assert time.monotonic() < deadline and not listed - there, differs
        scrub(server)
    deadline = time.monotonic() + SWEPT_SECONDS
    for key in listed:
        patiently(client, lambda: client.delete_object(Bucket=bucket, Key=key), deadline)
    for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        about = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
        patiently(client, lambda: client.abort_multipart_upload(**about), deadline)
    values = [place, *(f"{place}//{kind}" for kind in ("named", "staging", "stripes"))]
    deadline = time.monotonic() + SWEPT_SECONDS
    while left := [one for one in gateways.cluster.objects() if one[0] in values]:
        assert time.monotonic() < deadline, f"{len(left)} orphans: {left[:5]}"
        scrub(server)
