"""Gateways: servers without a state of their own, over one cluster."""

from types import SimpleNamespace

from conftest import binary, connect
from server import Server

# How long a client waits for an answer; a gateway gives up before.
PATIENCE = 90


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
        for server in self.servers:
            if server.process.poll() is None:
                server.stop()
