"""Virtual-host style: the bucket is in the name of the host, and the path is the key alone."""

import io
import socket
import urllib.error
import urllib.parse
import urllib.request
import uuid

import pytest
from boto3.s3.transfer import TransferConfig

from conftest import connect

MIB = 1 << 20
DOMAIN = "s3.forebay.test"
# A base that a flag names, one more, and the one that is always there.
DOMAINS = [DOMAIN, "objects.example", "localhost"]
# A name of this host too, of which the server knows nothing.
STRANGE = "forebay.invalid"


@pytest.fixture(scope="session")
def named(serve):
    return serve("--s3-domain", DOMAIN, "--s3-domain", "objects.example")


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """These names, and all below them, are this host."""
    ask = socket.getaddrinfo

    def answer(host, *more, **options):
        name = host.decode() if isinstance(host, bytes) else host
        here = name and any(name == domain or name.endswith(f".{domain}") for domain in [*DOMAINS, STRANGE])
        return ask("127.0.0.1" if here else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.fixture(params=DOMAINS)
def domain(request):
    return request.param


@pytest.fixture
def virtual(boto, named):
    """`virtual(domain)`: boto3 that puts the bucket before this name of the server."""
    port = named.endpoint.rsplit(":", 1)[1]
    return lambda domain: boto(named, f"http://{domain}:{port}", "virtual")


@pytest.fixture
def client(virtual, domain):
    return virtual(domain)


@pytest.fixture
def by_path(named):
    """Another client of the same server, which puts the bucket into the path."""
    return connect(named)


@pytest.fixture
def asked(client, sent, bucket):
    """Where the client's requests went: pairs of host, without its port, and decoded path."""
    requests = sent(client)

    def places():
        urls = [urllib.parse.urlsplit(request.url) for request in requests]
        return {(url.hostname, urllib.parse.unquote(url.path)) for url in urls}

    return places


# Some look like a bucket and a key of it, or like nothing at all.
KEYS = ["k", "a/b", "bucket/k", "a b+c/\u00e9?&=#%25", "/lead", "a//b", "..", "trail/"]


def test_keys(client, by_path, bucket, domain, asked):
    for key in [*KEYS, bucket, f"{bucket}/k"]:
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
        assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
        assert by_path.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
        assert client.head_object(Bucket=bucket, Key=key)["ContentLength"] == len(key.encode())
    assert asked() == {(f"{bucket}.{domain}", f"/{key}") for key in [*KEYS, bucket, f"{bucket}/k"]}
    listed = [one["Key"] for one in by_path.list_objects_v2(Bucket=bucket)["Contents"]]
    assert sorted(listed) == sorted([*KEYS, bucket, f"{bucket}/k"])


def test_listing(client, bucket, domain, asked):
    for key in ("a/1", "a/2", "b"):
        client.put_object(Bucket=bucket, Key=key, Body=b"x")
    listed = client.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [one["Key"] for one in listed["Contents"]] == ["b"]
    assert [one["Prefix"] for one in listed["CommonPrefixes"]] == ["a/"]
    assert listed["Name"] == bucket
    assert [one["Key"] for one in client.list_objects(Bucket=bucket, Prefix="a/")["Contents"]] == ["a/1", "a/2"]
    assert (f"{bucket}.{domain}", "/") in asked()
    assert {host for host, _ in asked()} == {f"{bucket}.{domain}"}
    # This one names no bucket.
    assert bucket in [one["Name"] for one in client.list_buckets()["Buckets"]]
    assert (domain, "/") in asked()


def test_bucket_itself(client, bucket, domain, asked, refused):
    client.head_bucket(Bucket=bucket)
    tags = [{"Key": "a", "Value": "1"}]
    client.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
    assert client.get_bucket_tagging(Bucket=bucket)["TagSet"] == tags
    client.delete_bucket(Bucket=bucket)
    with refused("NoSuchBucket", 404):
        client.head_bucket(Bucket=bucket)
    assert asked() == {(f"{bucket}.{domain}", "/")}


def test_name_with_dots(client, by_path, domain, sent):
    name = f"t.{uuid.uuid4().hex[:16]}.dots"
    requests = sent(client)
    client.create_bucket(Bucket=name)
    client.put_object(Bucket=name, Key="k", Body=b"x")
    assert {urllib.parse.urlsplit(request.url).hostname for request in requests} == {f"{name}.{domain}"}
    assert by_path.get_object(Bucket=name, Key="k")["Body"].read() == b"x"


def test_parts_and_copies(client, by_path, bucket, data, domain, asked):
    body = data(20 * MIB + 3)
    config = TransferConfig(multipart_chunksize=8 * MIB, max_concurrency=4)
    client.upload_fileobj(io.BytesIO(body), bucket, "dir/big", Config=config)
    assert client.head_object(Bucket=bucket, Key="dir/big")["ETag"].endswith('-3"')
    # By parts, and in one request.
    client.copy({"Bucket": bucket, "Key": "dir/big"}, bucket, "copy", Config=config)
    client.copy_object(Bucket=bucket, Key="whole", CopySource={"Bucket": bucket, "Key": "dir/big"})
    for key in ("dir/big", "copy", "whole"):
        sink = io.BytesIO()
        client.download_fileobj(bucket, key, sink, Config=config)
        assert sink.getvalue() == body
        assert by_path.head_object(Bucket=bucket, Key=key)["ContentLength"] == len(body)
    assert {host for host, _ in asked()} == {f"{bucket}.{domain}"}


def test_signed_addresses(client, bucket, domain):
    key = f"{bucket}/a b"

    def send(method, call, body=None, **headers):
        url = client.generate_presigned_url(call, Params={"Bucket": bucket, "Key": key}, ExpiresIn=60)
        assert urllib.parse.urlsplit(url).hostname == f"{bucket}.{domain}"
        return urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method))

    assert send("PUT", "put_object", b"signed").status == 200
    assert send("GET", "get_object").read() == b"signed"
    # What was signed is the name of the host, and so the bucket.
    other = f"t-{uuid.uuid4().hex[:16]}"
    client.create_bucket(Bucket=other)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        send("GET", "get_object", Host=f"{other}.{domain}")
    assert refusal.value.code == 403
    assert send("DELETE", "delete_object").status == 204


def test_of_another_domain_it_is_no_bucket(virtual, by_path, refused):
    """There the path names the bucket, whatever the client meant."""
    bucket = f"t-{uuid.uuid4().hex[:16]}"
    by_path.create_bucket(Bucket=bucket)
    by_path.put_object(Bucket=bucket, Key="k", Body=b"x")
    with refused("NoSuchBucket", 404):
        virtual(STRANGE).get_object(Bucket=bucket, Key="k")
    assert virtual(DOMAIN).get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
