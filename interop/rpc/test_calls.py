"""Every call of every service, by a client that learnt of them from reflection alone."""

import hashlib
import json
import os
import subprocess
from types import SimpleNamespace

import grpc
import pytest

from conftest import binary, connect as s3_client
from rpc_interface import bearer

NOT_FOUND = grpc.StatusCode.NOT_FOUND
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def test_reflection_tells_the_services(root):
    told = root.services()
    services = ("Admin", "Sessions", "Objects", "Execution", "Watch")
    assert {f"forebay.v1.{name}" for name in services} <= set(told)
    assert len(list(root.methods())) == len(set(root.methods())) == 53


def test_administration(root, server):
    running = root.call("Admin.GetServer")
    assert running.pid == server.process.pid
    assert server.rpc in running.doors["rpc"]
    assert root.call("Admin.GetLimits").exist_keys_max == 10_000

    made = root.call("Admin.CreateTenant", name="blue", display_name="Blue team")
    assert made.display_name == "Blue team"
    assert root.refusal("Admin.CreateTenant", name="blue") == (grpc.StatusCode.ALREADY_EXISTS, "REASON_EXISTS")
    assert "blue" in [one.name for one in root.call("Admin.ListTenants").tenants]
    bounded = root.call("Admin.SetTenantQuota", name="blue", quota={"bytes": {"value": 1 << 20}})
    assert bounded.quota.bytes == 1 << 20
    assert not root.call("Admin.SetTenantQuota", name="blue", quota={"bytes": {}}).quota.HasField("bytes")
    assert root.call("Admin.GetTenant", name="blue").keys == 0

    key = root.call("Admin.CreateKey", tenant="blue")
    assert key.secret_key
    listed = root.call("Admin.ListKeys", tenant="blue").keys
    assert [(one.access_key, one.secret_key) for one in listed] == [(key.access_key, "")]
    root.call("Admin.RemoveKey", access_key=key.access_key)

    versions = root.enum("Versioning")
    made = root.call(
        "Admin.CreateNamespace", name="blue-data", tenant="blue",
        config={"durability": {"relaxed_ms": 50}, "ttl_ms": {"value": 1000}, "quota": {"objects": {"value": 5}}},
    )
    assert (made.tenant, made.durability.relaxed_ms, made.ttl_ms, made.quota.objects) == ("blue", 50, 1000, 5)
    changed = root.call(
        "Admin.ChangeNamespace", name="blue-data",
        change={"versioning": versions["VERSIONING_ENABLED"].number, "ttl_ms": {}},
    )
    assert changed.versioning == versions["VERSIONING_ENABLED"].number
    assert not changed.HasField("ttl_ms") and changed.durability.relaxed_ms == 50
    assert root.call("Admin.GetNamespace", name="blue-data") == changed
    assert changed in root.call("Admin.ListNamespaces").namespaces
    assert root.refusal("Admin.RemoveTenant", name="blue") == (
        grpc.StatusCode.FAILED_PRECONDITION, "REASON_NOT_EMPTY",
    )
    root.call("Admin.RemoveNamespace", name="blue-data")
    root.call("Admin.RemoveTenant", name="blue")
    assert root.call("Admin.Scrub").damaged == 0
    assert root.call("Admin.RunLifecycle").failed == 0


def test_hosts_of_the_nvme_doors(root):
    nqn = "nqn.2026-01.com.example:lab"
    made = root.call("Admin.CreateHost", nqn=nqn, tenant="root")
    assert (made.nqn, made.tenant, made.chap) == (nqn, "root", False)
    assert root.refusal("Admin.CreateHost", nqn=nqn, tenant="root") == (grpc.StatusCode.ALREADY_EXISTS, "REASON_EXISTS")
    assert root.refusal("Admin.CreateHost", nqn="no name", tenant="root") == (INVALID, "REASON_INVALID")
    keyed = {"nqn": nqn + "-keyed", "tenant": "root"}
    assert root.refusal("Admin.CreateHost", tls_key="NVMeTLSkey-1:01:x:", **keyed) == (INVALID, "REASON_INVALID")
    key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
    assert (made.tls, root.call("Admin.CreateHost", tls_key=key, **keyed).tls) == (False, True)
    root.call("Admin.RemoveHost", nqn=nqn + "-keyed")
    assert [host.nqn for host in root.call("Admin.ListHosts").hosts] == [nqn]
    root.call("Admin.RemoveHost", nqn=nqn)
    assert root.refusal("Admin.RemoveHost", nqn=nqn) == (NOT_FOUND, "REASON_NOT_FOUND")


def test_sessions(root):
    access = root.enum("Access")["ACCESS_READ_WRITE"].number
    opened = root.call("Sessions.Open", lease_ms=60_000)
    assert (len(opened.session), len(opened.key), opened.lease_ms) == (16, 32, 60_000)
    assert {path.fabric for path in opened.paths} == {"shm", "iwarp", "http"}
    assert os.path.exists(next(path.address for path in opened.paths if path.fabric == "shm"))
    session = opened.session
    assert root.call("Sessions.KeepAlive", session=session, lease_ms=5000).lease_ms == 5000
    # Without a link there is no memory to name.
    no_region = (NOT_FOUND, "REASON_NO_SUCH_REGION")
    assert root.refusal("Sessions.RegisterRegion", session=session, stag=1, length=4096, access=access) == no_region
    assert root.refusal("Sessions.DeregisterRegion", session=session, region=1) == no_region
    assert root.refusal("Sessions.Grant", session=session, region=1, length=1, access=access) == no_region
    no_grant = (NOT_FOUND, "REASON_NO_SUCH_GRANT")
    assert root.refusal("Sessions.Renew", grant=b"\1" * 74) == no_grant
    assert root.refusal("Sessions.Revoke", session=session, id=1) == no_grant
    root.call("Sessions.Close", session=session)
    no_session = (NOT_FOUND, "REASON_NO_SUCH_SESSION")
    assert root.refusal("Sessions.KeepAlive", session=session) == no_session
    assert root.refusal("Sessions.KeepAlive", session=os.urandom(16)) == no_session


def test_objects(root, namespace):
    where = {"namespace": namespace}
    value = os.urandom(100_000)
    stored = root.call("Objects.Store", **where, key=b"a/value", data=value)
    assert (stored.object.size, stored.replaced) == (len(value), False)
    assert root.refusal("Objects.Store", **where, key=b"a/value", data=b"", condition={"if_absent": True}) == (
        grpc.StatusCode.FAILED_PRECONDITION, "REASON_CONDITION",
    )
    assert root.refusal("Objects.Store", **where, key=b"a/value", data=value, crc64nvme=1) == (
        grpc.StatusCode.DATA_LOSS, "REASON_CHECKSUM",
    )
    assert root.refusal("Objects.Store", **where, key=b"big", data=bytes((1 << 20) + 1)) == (INVALID, "REASON_TOO_LARGE")
    got = root.call("Objects.Retrieve", **where, key=b"a/value", checksum=True)
    assert (got.data, got.path, got.crc64nvme) == (value, "grpc", stored.object.crc64nvme)
    part = root.call("Objects.Retrieve", **where, key=b"a/value", range={"offset": 99_000, "length": 5000})
    assert (part.data, part.offset) == (value[99_000:], 99_000)
    assert root.call("Objects.Stat", **where, key=b"a/value").object == stored.object
    assert root.refusal("Objects.Stat", **where, key=b"none") == (NOT_FOUND, "REASON_NOT_FOUND")

    for number in range(20):
        root.call("Objects.Store", **where, key=b"block-%03d" % number, data=b"x")
    keys = [b"block-%03d" % number for number in range(10_000)]
    found = root.call("Objects.Exist", **where, keys=keys, sizes=True)
    assert list(found.found) == [number < 20 for number in range(10_000)]
    assert sum(found.sizes) == 20
    assert root.refusal("Objects.Exist", **where, keys=[*keys, b"more"]) == (INVALID, "REASON_INVALID")
    assert root.call("Objects.LongestPrefix", **where, keys=keys).found == 20

    listed, token = [], b""
    while True:
        page = root.call("Objects.List", **where, delimiter=b"/", limit=6, page_token=token)
        listed += [entry.prefix or entry.object.key for entry in page.entries]
        token = page.next_page_token
        if not token:
            break
    assert listed == [b"a/", *keys[:20]]

    # Payload by a link needs one: each element says so, in the order asked.
    elements = [{"key": b"a/value", "place": {"region": region, "length": 1}} for region in (7, 8)]
    session = root.call("Sessions.Open").session
    for name in ("Gather", "Scatter"):
        answers = list(root.call(f"Objects.{name}", **where, session=session, elements=elements))
        assert [answer.index for answer in answers] == [0, 1]
        assert {answer.failure.reason for answer in answers} == {root.enum("Reason")["REASON_NO_SUCH_REGION"].number}
        assert {answer.failure.code for answer in answers} == {NOT_FOUND.value[0]}
        assert root.refusal(f"Objects.{name}", **where, session=os.urandom(16)) == (NOT_FOUND, "REASON_NO_SUCH_SESSION")
    root.call("Sessions.Close", session=session)

    assert root.call("Objects.Delete", **where, key=b"a/value").existed
    assert not root.call("Objects.Delete", **where, key=b"a/value").existed


@pytest.mark.parametrize("fabric", ["shm", "iwarp"])
def test_memory_is_registered_granted_and_moved(root, connect, namespace, exposed, fabric):
    """The file of another process is what the calls fill and read."""
    access = {name[7:].lower(): value.number for name, value in root.enum("Access").items()}
    opened = root.call("Sessions.Open", lease_ms=60_000)
    session = opened.session
    memory, told = exposed(opened, fabric)
    region = root.call("Sessions.RegisterRegion", session=session, access=access["read_write"], **told).region

    values = {b"layer-%d" % number: os.urandom(size) for number, size in enumerate((5, 4096, 300_000))}
    offsets = dict(zip(values, (0, 8192, 65_536)))
    memory[:] = bytes(len(memory))
    place = lambda key, **memory: {**memory, "offset": offsets[key], "length": len(values[key])}
    elements = lambda **memory: [{"key": key, "place": place(key, **memory)} for key in values]
    for key, value in values.items():
        memory[offsets[key] : offsets[key] + len(value)] = value
    stored = list(root.call("Objects.Scatter", namespace=namespace, session=session, elements=elements(region=region)))
    assert [(one.index, one.HasField("failure")) for one in stored] == [(0, False), (1, False), (2, False)]
    for key, value in values.items():
        if len(value) <= 4096:
            assert root.call("Objects.Retrieve", namespace=namespace, key=key).data == value

    def gathered(client, **place):
        memory[:] = bytes(len(memory))
        asked = elements(**{name: value for name, value in place.items() if name != "session"})
        where = {"namespace": namespace, "session": place.get("session", b"")}
        answers = list(client.call("Objects.Gather", **where, elements=asked, checksum=True))
        assert [one.index for one in answers] == [0, 1, 2]
        failures = {one.failure.reason for one in answers if one.HasField("failure")}
        if not failures:
            assert [(one.length, one.path) for one in answers] == [(len(value), fabric) for value in values.values()]
            for key, value in values.items():
                assert memory[offsets[key] : offsets[key] + len(value)] == value
        else:
            assert memory[:] == bytes(len(memory))
        names = {value.number: name for name, value in root.enum("Reason").items()}
        return {names[reason] for reason in failures}

    assert gathered(root, session=session, region=region) == set()
    # Whoever is of the tenant may use a grant, without the session.
    key = root.call("Admin.CreateKey", tenant="root")
    other = connect(key.access_key, key.secret_key)
    granted = root.call("Sessions.Grant", session=session, region=region, length=len(memory), access=access["write"])
    assert gathered(other, grant=granted.grant) == set()
    scattered = other.call("Objects.Scatter", namespace=namespace, elements=elements(grant=granted.grant))
    assert all(one.HasField("failure") for one in scattered), "it may be written, not read"
    renewed = root.call("Sessions.Renew", grant=granted.grant, lifetime_ms=30_000)
    assert renewed.grant != granted.grant and gathered(other, grant=renewed.grant) == set()
    root.call("Sessions.Revoke", session=session, id=granted.id)
    for grant in (granted.grant, renewed.grant):
        assert gathered(other, grant=grant) == {"REASON_NO_SUCH_GRANT"}
    # The same by an administrator, who knows of a grant what is no grant.
    granted = root.call("Sessions.Grant", session=session, region=region, length=100_000, access=access["write"])
    lines = root.call("Admin.ListGrants", tenant="root").grants
    own = [line for line in lines if line.id.startswith(session.hex())]
    assert [line.id[32:] for line in own] == ["", f"-{region}", f"-{granted.id}"]
    kinds = root.enum("GrantKind")
    assert [line.kind for line in own] == [kinds[f"GRANT_KIND_{kind}"].number for kind in ("SESSION", "REGION", "GRANT")]
    assert {(line.tenant, line.access_key, *line.fabrics) for line in own} == {("root", own[0].access_key, fabric)}
    lent = own[2].memory
    assert (lent.region, lent.offset, lent.length, lent.access) == (region, 0, 100_000, access["write"])
    assert own[2].until_ms == granted.expires_ms and not own[1].HasField("until_ms")
    page = root.call("Admin.ListGrants", page_token=own[0].id, limit=1)
    assert (list(page.grants), page.next_page_token) == ([own[0]], own[1].id)
    assert root.refusal("Admin.ListGrants", page_token="nonsense") == (INVALID, "REASON_INVALID")
    root.call("Admin.RemoveGrant", id=own[2].id)
    assert gathered(other, grant=granted.grant) == {"REASON_NO_SUCH_GRANT"}
    assert root.refusal("Admin.RemoveGrant", id=own[2].id) == (NOT_FOUND, "REASON_NOT_FOUND")
    root.call("Sessions.DeregisterRegion", session=session, region=region)
    assert gathered(root, session=session, region=region) == {"REASON_NO_SUCH_REGION"}
    root.call("Admin.RemoveKey", access_key=key.access_key)
    root.call("Sessions.Close", session=session)


def test_objects_are_the_same_through_every_door(root, server, namespace):
    access_key, secret_key = server.keys
    s3 = s3_client(SimpleNamespace(
        endpoint=server.endpoint, access_key=access_key, secret_key=secret_key, region="us-east-1",
    ))
    kept = {"content_type": "text/plain", "metadata": {"run": "7"}, "tags": {"stage": "raw data"}}
    root.call("Objects.Store", namespace=namespace, key=b"by-grpc", data=b"one", attributes=kept)
    got = s3.get_object(Bucket=namespace, Key="by-grpc")
    assert (got["Body"].read(), got["ContentType"], got["Metadata"]) == (b"one", "text/plain", {"run": "7"})
    tags = s3.get_object_tagging(Bucket=namespace, Key="by-grpc")["TagSet"]
    assert tags == [{"Key": "stage", "Value": "raw data"}]
    s3.put_object(
        Bucket=namespace, Key="by-s3", Body=b"two", ContentType="text/plain", Metadata={"run": "7"}, Tagging="stage=raw%20data"
    )
    assert root.call("Objects.Retrieve", namespace=namespace, key=b"by-s3").data == b"two"
    stat = lambda key: root.call("Objects.Stat", namespace=namespace, key=key).attributes
    assert stat(b"by-s3") == stat(b"by-grpc")
    wrong = {"content_type": "text/plain\r\nx: y"}
    assert root.refusal("Objects.Store", namespace=namespace, key=b"by-grpc", data=b"", attributes=wrong) == (
        INVALID, "REASON_INVALID",
    )


# (module (import "forebay" "pass" (func (param i32 i64 i64) (result i64))) (memory (export "memory") 1)
#   (func (export "run") (result i32) (drop (call 0 (i32.const 0) (i64.const 0) (i64.const 7))) (i32.const 0)))
SEVEN_BYTES = b"".join([
    b"\0asm\x01\0\0\0",
    b"\x01\x0c\x02\x60\x03\x7f\x7e\x7e\x01\x7e\x60\0\x01\x7f",
    b"\x02\x10\x01\x07forebay\x04pass\0\0",
    b"\x03\x02\x01\x01",
    b"\x05\x03\x01\0\x01",
    b"\x07\x10\x02\x06memory\x02\0\x03run\0\x01",
    b"\x0a\x0f\x01\x0d\0\x41\0\x42\0\x42\x07\x10\0\x1a\x41\0\x0b",
])


def test_functions(root, tenant, namespace):
    root.call("Objects.Store", namespace=namespace, key=b"key", data=b"a value and more")
    place = {"tenant": "root", "namespace": namespace}
    added = root.call("Execution.AddModule", name="seven", wasm=SEVEN_BYTES, **place)
    assert added.sha256 == hashlib.sha256(SEVEN_BYTES).digest()
    assert added in root.call("Execution.ListModules").modules
    asked = {"name": "seven", "inputs": [{"namespace": namespace, "key": b"key"}], "capacity": 100}
    *parts, last = root.call("Execution.Execute", **asked)
    assert b"".join(part.data for part in parts) == b"a value"
    assert last.executed.length == 7
    assert tenant().refusal("Execution.Execute", **asked)[0] == NOT_FOUND
    root.call("Execution.RemoveModule", module="seven", **place)
    assert root.refusal("Execution.Execute", **asked) == (grpc.StatusCode.PERMISSION_DENIED, "REASON_DENIED")
    assert added not in root.call("Execution.ListModules").modules


def test_watching(root, tenant):
    kinds = root.enum("NamespaceChangeKind")
    blue = tenant()
    events = blue.call("Watch.Namespaces")
    seen = lambda: (lambda event: (event.kind, event.namespace.name))(next(events))
    told = lambda kind, name="": (kinds[f"NAMESPACE_CHANGE_KIND_{kind}"].number, name)
    assert seen() == told("RESET")
    assert seen() == told("SYNCED")
    name = f"{blue.name}-data"
    root.call("Admin.CreateNamespace", name=f"{blue.name}-other")
    blue.call("Admin.CreateNamespace", name=name)
    assert seen() == told("CREATED", name)
    blue.call("Admin.RemoveNamespace", name=name)
    last = next(events)
    assert (last.kind, last.namespace.name) == told("REMOVED", name)
    events.cancel()
    again = blue.call("Watch.Namespaces", revision=last.revision)
    blue.call("Admin.CreateNamespace", name=name)
    assert (lambda event: (event.kind, event.namespace.name))(next(again)) == told("CREATED", name)
    again.cancel()
    blue.call("Admin.RemoveNamespace", name=name)
    root.call("Admin.RemoveNamespace", name=f"{blue.name}-other")


def test_a_cold_tier_that_the_server_has_not(root, namespace):
    """How it works is tested with a second server; here every call is refused in words."""
    for name, fields in [
        ("GetTier", {"namespace": namespace}),
        ("SetTier", {"namespace": namespace}),
        ("RemoveTier", {"namespace": namespace}),
        ("AddTierRule", {"namespace": namespace, "name": "rule"}),
        ("RemoveTierRule", {"namespace": namespace, "name": "rule"}),
        ("RunTier", {"namespace": namespace}),
        ("Recall", {"namespace": namespace, "key": b"key"}),
        ("SweepTier", {}),
    ]:
        refused = root.refusal(f"Admin.{name}", **fields)
        assert refused == (grpc.StatusCode.INVALID_ARGUMENT, "REASON_INVALID"), name


def test_what_is_anothers_is_not_there(root, tenant, namespace):
    blue = tenant()
    root.call("Objects.Store", namespace=namespace, key=b"key", data=b"value")
    for name, fields in [
        ("Admin.GetNamespace", {"name": namespace}),
        ("Admin.RemoveNamespace", {"name": namespace}),
        ("Objects.Retrieve", {"namespace": namespace, "key": b"key"}),
        ("Objects.Delete", {"namespace": namespace, "key": b"key"}),
        ("Objects.List", {"namespace": namespace}),
        ("Objects.Gather", {"namespace": namespace}),
    ]:
        assert blue.refusal(name, **fields) == (NOT_FOUND, "REASON_NO_SUCH_NAMESPACE"), name
    session = root.call("Sessions.Open").session
    assert blue.refusal("Sessions.Close", session=session) == (NOT_FOUND, "REASON_NO_SUCH_SESSION")
    for id in (session.hex(), os.urandom(16).hex()):
        assert blue.refusal("Admin.RemoveGrant", id=id) == (NOT_FOUND, "REASON_NOT_FOUND")
    assert blue.refusal("Admin.RemoveGrants", tenant="root") == (NOT_FOUND, "REASON_NOT_FOUND")
    assert session.hex() not in [line.id for line in root.call("Admin.ListGrants", tenant=blue.name).grants]
    own = blue.call("Sessions.Open").session
    assert [line.id for line in blue.call("Admin.ListGrants").grants] == [own.hex()]
    assert blue.call("Admin.RemoveGrants", tenant=blue.name).sessions == 1
    assert blue.refusal("Sessions.Close", session=own) == (NOT_FOUND, "REASON_NO_SUCH_SESSION")
    root.call("Sessions.Close", session=session)
    denied = (grpc.StatusCode.PERMISSION_DENIED, "REASON_DENIED")
    assert blue.refusal("Admin.CreateTenant", name="stolen") == denied
    assert blue.refusal("Admin.Scrub") == denied
    assert [one.name for one in blue.call("Admin.ListTenants").tenants] == [blue.name]


@pytest.mark.parametrize("wrong", ["expired", "forged", "garbage", "other label", "none"])
def test_who_calls_must_be_proved(connect, server, wrong):
    access_key, secret_key = server.keys
    token = {
        "expired": bearer(access_key, secret_key, lifetime_s=-1),
        "forged": bearer(access_key, "another-secret"),
        "garbage": "garbage",
        "other label": bearer(access_key, secret_key, label=b"fbk2 bearer\0"),
        "none": "x",
    }[wrong]
    client = connect(token=token)
    if wrong == "none":
        client.token = None
    assert client.refusal("Admin.GetLimits") == (grpc.StatusCode.UNAUTHENTICATED, "REASON_UNAUTHENTICATED")


def test_every_call_was_driven(root):
    """Last: the calls above were all there are."""
    assert set(root.methods()) == root.driven


def test_our_command_line_administers_from_elsewhere(root, server, tmp_path):
    def admin(*words, keys=server.keys, code=0):
        env = {
            "PATH": os.environ["PATH"], "FOREBAY_ENDPOINT": f"http://{server.rpc}",
            "FOREBAY_ACCESS_KEY": keys[0], "FOREBAY_SECRET_KEY": keys[1],
        }
        command = [str(binary()), "admin", *words, "--json"]
        done = subprocess.run(command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == code, f"{words}: {done.returncode} {done.stderr}"
        assert len(done.stderr.splitlines()) == (1 if code else 0), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    admin("tenant", "create", "far")
    key = admin("key", "create", "far")[0]
    keys = (key["access_key"], key["secret_key"])
    assert admin("namespace", "create", "far-away", "--tenant", "far", keys=keys)[0]["tenant"] == "far"
    assert [one["name"] for one in admin("namespace", "list", keys=keys)] == ["far-away"]
    assert root.call("Admin.GetNamespace", name="far-away").tenant == "far"
    admin("quota", "tenant", "far", "--objects", "7")
    admin("quota", "tenant", "far", "--objects", "9", keys=keys, code=4)
    assert root.call("Admin.GetTenant", name="far").quota.objects == 7
    admin("tenant", "list", keys=(key["access_key"], "wrong"), code=4)
    admin("key", "rm", "NOSUCHKEY", code=3)
    admin("namespace", "rm", "far-away", keys=keys)
    admin("tenant", "rm", "far")
