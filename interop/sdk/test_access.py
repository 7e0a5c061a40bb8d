"""Who may: signatures, presigned addresses, anonymous requests, bucket policies, CORS."""

import json
import urllib.parse

import pytest
import urllib3
from botocore import UNSIGNED

from conftest import connect

HTTP = urllib3.PoolManager(retries=False)


@pytest.fixture
def anonymous(s3):
    return connect(s3, signature_version=UNSIGNED)


def allow(bucket, *actions, resource="*", effect="Allow", **more):
    return {
        "Effect": effect, "Principal": "*", "Action": [f"s3:{one}" for one in actions],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/{resource}"], **more,
    }


def set_policy(client, bucket, *statements):
    document = {"Version": "2012-10-17", "Statement": list(statements)}
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(document))
    assert json.loads(client.get_bucket_policy(Bucket=bucket)["Policy"]) == document


def test_wrong_keys(s3, bucket, refused):
    with refused("SignatureDoesNotMatch", 403):
        connect(s3, secret_key="not the secret").list_objects_v2(Bucket=bucket)
    with refused("InvalidAccessKeyId", 403):
        connect(s3, access_key="AKIANOBODY").list_objects_v2(Bucket=bucket)


def test_anonymous_is_denied(client, anonymous, bucket, refused):
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    for call in (
        lambda: anonymous.get_object(Bucket=bucket, Key="k"),
        lambda: anonymous.put_object(Bucket=bucket, Key="k", Body=b"y"),
        lambda: anonymous.list_objects_v2(Bucket=bucket),
        lambda: anonymous.list_buckets(),
    ):
        with refused("AccessDenied", 403):
            call()
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_policy_opens_a_prefix(client, anonymous, bucket, refused):
    for key in ("public/a", "private/a"):
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    set_policy(client, bucket, allow(bucket, "GetObject", resource="public/*"))
    assert anonymous.get_object(Bucket=bucket, Key="public/a")["Body"].read() == b"public/a"
    for call in (
        lambda: anonymous.get_object(Bucket=bucket, Key="private/a"),
        lambda: anonymous.delete_object(Bucket=bucket, Key="public/a"),
        lambda: anonymous.list_objects_v2(Bucket=bucket),
    ):
        with refused("AccessDenied", 403):
            call()
    client.delete_bucket_policy(Bucket=bucket)
    with refused("AccessDenied", 403):
        anonymous.get_object(Bucket=bucket, Key="public/a")


def test_policy_list_by_prefix(client, anonymous, bucket, refused):
    client.put_object(Bucket=bucket, Key="public/a", Body=b"x")
    condition = {"StringLike": {"s3:prefix": ["public/*", "public/"]}}
    set_policy(client, bucket, allow(bucket, "ListBucket", Condition=condition))
    assert anonymous.list_objects_v2(Bucket=bucket, Prefix="public/")["KeyCount"] == 1
    with refused("AccessDenied", 403):
        anonymous.list_objects_v2(Bucket=bucket)


def test_deny_wins(client, anonymous, bucket, refused):
    client.put_object(Bucket=bucket, Key="secret/a", Body=b"x")
    client.put_object(Bucket=bucket, Key="a", Body=b"x")
    set_policy(
        client, bucket,
        allow(bucket, "*"),
        allow(bucket, "GetObject", resource="secret/*", effect="Deny"),
    )
    anonymous.get_object(Bucket=bucket, Key="a")
    anonymous.put_object(Bucket=bucket, Key="b", Body=b"y")
    with refused("AccessDenied", 403):
        anonymous.get_object(Bucket=bucket, Key="secret/a")


def test_malformed_policy(client, bucket, refused):
    for text in ("not json", "{}", '{"Version":"2012-10-17","Statement":[{"Effect":"Perhaps"}]}'):
        with refused("MalformedPolicy", 400):
            client.put_bucket_policy(Bucket=bucket, Policy=text)


def presign(client, method, bucket, key="a b", **more):
    return client.generate_presigned_url(
        method, Params={"Bucket": bucket, "Key": key, **more}, ExpiresIn=60
    )


def test_presigned(s3, bucket, data):
    client = connect(s3, signature_version="s3v4")
    body = data(70_000)
    put = HTTP.request("PUT", presign(client, "put_object", bucket), body=body)
    assert put.status == 200, put.data
    got = HTTP.request("GET", presign(client, "get_object", bucket))
    assert (got.status, got.data) == (200, body)
    part = HTTP.request("GET", presign(client, "get_object", bucket), headers={"Range": "bytes=5-9"})
    assert (part.status, part.data) == (206, body[5:10])
    named = HTTP.request("GET", presign(client, "get_object", bucket, ResponseContentType="text/x"))
    assert named.headers["Content-Type"] == "text/x"
    assert HTTP.request("HEAD", presign(client, "head_object", bucket)).status == 200
    assert HTTP.request("DELETE", presign(client, "delete_object", bucket)).status == 204


def test_presigned_refusals(s3, bucket):
    client = connect(s3, signature_version="s3v4")
    client.put_object(Bucket=bucket, Key="a b", Body=b"x")
    good = presign(client, "get_object", bucket)
    assert HTTP.request("GET", good).status == 200
    for bad in (
        good.replace("a%20b", "a%20c"),
        good.replace("X-Amz-Expires=60", "X-Amz-Expires=61"),
        good[:-1] + ("0" if good[-1] != "0" else "1"),
        client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a b"}, ExpiresIn=0),
        good.replace("X-Amz-Expires=60", "X-Amz-Expires=604801"),
    ):
        answer = HTTP.request("GET", bad)
        assert answer.status in (400, 403), bad
        assert answer.data.startswith(b"<?xml") and b"<Code>" in answer.data
    assert HTTP.request("PUT", good, body=b"y").status == 403


def test_request_id_in_header_and_body(s3, bucket):
    answer = HTTP.request("GET", f"{s3.endpoint}/{bucket}/k")
    assert answer.status == 403
    assert f"<RequestId>{answer.headers['x-amz-request-id']}</RequestId>".encode() in answer.data


def test_cors(client, s3, bucket):
    rules = [{
        "AllowedOrigins": ["http://*.test"], "AllowedMethods": ["GET", "PUT"],
        "AllowedHeaders": ["x-amz-*"], "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 7,
    }]
    client.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": rules})
    assert client.get_bucket_cors(Bucket=bucket)["CORSRules"] == rules
    address = f"{s3.endpoint}/{bucket}/k"

    def preflight(origin, method, headers="x-amz-date"):
        return HTTP.request("OPTIONS", address, headers={
            "Origin": origin, "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": headers,
        })

    good = preflight("http://a.test", "PUT")
    assert good.status == 200
    assert good.headers["Access-Control-Allow-Origin"] == "http://a.test"
    assert "PUT" in good.headers["Access-Control-Allow-Methods"]
    assert good.headers["Access-Control-Max-Age"] == "7"
    for bad in (preflight("http://a.other", "PUT"), preflight("http://a.test", "DELETE"),
                preflight("http://a.test", "PUT", "authorization")):
        assert bad.status == 403
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    got = HTTP.request("GET", presign(client, "get_object", bucket, "k"), headers={"Origin": "http://a.test"})
    assert got.headers["Access-Control-Allow-Origin"] == "http://a.test"
    assert got.headers["Access-Control-Expose-Headers"] == "ETag"
    client.delete_bucket_cors(Bucket=bucket)
    assert preflight("http://a.test", "PUT").status == 403


def test_bucket_tags(client, bucket, refused):
    tags = [{"Key": "team", "Value": "a"}]
    client.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
    assert client.get_bucket_tagging(Bucket=bucket)["TagSet"] == tags
    client.delete_bucket_tagging(Bucket=bucket)
    with refused("NoSuchTagSet", 404):
        client.get_bucket_tagging(Bucket=bucket)


def test_lifecycle_round_trip(client, bucket, refused):
    rules = [
        {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 3}},
        {"ID": "tag", "Status": "Enabled", "Filter": {"Tag": {"Key": "t", "Value": "1"}},
         "Expiration": {"Days": 1}},
        {"ID": "parts", "Status": "Disabled", "Filter": {"Prefix": ""},
         "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}},
    ]
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    assert client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == rules
    client.put_object(Bucket=bucket, Key="tmp/a", Body=b"x")
    expiration = client.head_object(Bucket=bucket, Key="tmp/a")["Expiration"]
    assert 'rule-id="old"' in urllib.parse.unquote(expiration)
    client.delete_bucket_lifecycle(Bucket=bucket)
    with refused("NoSuchLifecycleConfiguration", 404):
        client.get_bucket_lifecycle_configuration(Bucket=bucket)
