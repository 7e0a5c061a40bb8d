"""Buckets: life cycle, names, and the questions clients ask of a bucket on which nothing is set."""

import uuid

import pytest


def test_life_cycle(client, refused):
    name = f"t-{uuid.uuid4().hex}"
    with refused("NoSuchBucket", 404):
        client.head_bucket(Bucket=name)
    client.create_bucket(Bucket=name)
    client.head_bucket(Bucket=name)
    assert name in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
    assert client.get_bucket_location(Bucket=name)["LocationConstraint"] is None
    client.delete_bucket(Bucket=name)
    with refused("NoSuchBucket", 404):
        client.list_objects_v2(Bucket=name)
    with refused("NoSuchBucket", 404):
        client.delete_bucket(Bucket=name)


def test_create_again_is_harmless(client, bucket):
    try:
        client.create_bucket(Bucket=bucket)
    except client.exceptions.BucketAlreadyOwnedByYou:
        pass
    client.head_bucket(Bucket=bucket)


def test_delete_refuses_a_bucket_with_objects(client, bucket, refused):
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    with refused("BucketNotEmpty", 409):
        client.delete_bucket(Bucket=bucket)
    client.delete_object(Bucket=bucket, Key="k")
    client.delete_bucket(Bucket=bucket)


@pytest.mark.parametrize("name", ["UPPER", "a_b", "ab", "x" * 64, "192.168.5.4", "a..b", "-a-b"])
def test_bad_names(client, name, refused):
    with refused("InvalidBucketName", 400):
        client.create_bucket(Bucket=name)


def test_nothing_is_set(client, bucket, refused):
    assert "Status" not in client.get_bucket_versioning(Bucket=bucket)
    assert client.get_bucket_acl(Bucket=bucket)["Grants"][0]["Permission"] == "FULL_CONTROL"
    for call, code in [
        (client.get_bucket_policy, "NoSuchBucketPolicy"),
        (client.get_bucket_cors, "NoSuchCORSConfiguration"),
        (client.get_bucket_lifecycle_configuration, "NoSuchLifecycleConfiguration"),
        (client.get_bucket_tagging, "NoSuchTagSet"),
        (client.get_bucket_website, "NoSuchWebsiteConfiguration"),
        (client.get_object_lock_configuration, "ObjectLockConfigurationNotFoundError"),
    ]:
        with refused(code, 404):
            call(Bucket=bucket)
