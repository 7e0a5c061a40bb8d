"""A gRPC client that knows nothing of the interface but what the server's reflection tells."""

import base64
import hashlib
import hmac
import time

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

PACKAGE = "forebay.v1"
SERVICES = ("Admin", "Sessions", "Objects", "Execution", "Watch")


def bearer(access_key, secret_key, lifetime_s=600, label=b"fbk1 bearer\0"):
    """The token that a client makes from its access key."""
    expiry = str(int(time.time()) + lifetime_s)
    signed = label + f"{access_key}.{expiry}".encode()
    tag = hmac.new(secret_key.encode(), signed, hashlib.sha256).digest()
    return f"fbk1.{access_key}.{expiry}.{base64.urlsafe_b64encode(tag).decode().rstrip('=')}"


class Interface:
    """The calls of a server, found by reflection."""

    # The names of all that were made.
    driven = set()

    def __init__(self, channel, token=None):
        self.channel = channel
        self.token = token
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))

    def services(self):
        return ProtoReflectionDescriptorDatabase(self.channel).get_services()

    def methods(self):
        for name in SERVICES:
            service = self.pool.FindServiceByName(f"{PACKAGE}.{name}")
            yield from (f"{name}.{method.name}" for method in service.methods)

    def message(self, name, **fields):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))(**fields)

    def enum(self, name):
        return self.pool.FindEnumTypeByName(f"{PACKAGE}.{name}").values_by_name

    def call(self, name, /, **fields):
        """One call: its answer, or the list of its answers. Refused calls raise grpc.RpcError."""
        service, method = name.split(".")
        found = self.pool.FindServiceByName(f"{PACKAGE}.{service}").FindMethodByName(method)
        request = message_factory.GetMessageClass(found.input_type)(**fields)
        kind = self.channel.unary_stream if found.server_streaming else self.channel.unary_unary
        stub = kind(
            f"/{PACKAGE}.{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
        )
        metadata = [("authorization", f"Bearer {self.token}")] if self.token else []
        self.driven.add(name)
        return stub(request, metadata=metadata, timeout=60)

    def refusal(self, name, /, **fields):
        """Code and reason with which a call is refused."""
        with pytest.raises(grpc.RpcError) as refused:
            answer = self.call(name, **fields)
            # A stream is refused when it is read.
            list(answer) if hasattr(answer, "__next__") else None
        trailing = dict(refused.value.trailing_metadata() or ())
        return refused.value.code(), trailing.get("forebay-reason")
