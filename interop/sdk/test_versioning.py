"""Versions: kept, listed, read, deleted one by one; markers; suspension and the null version."""


def enable(client, bucket, status="Enabled"):
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
    assert client.get_bucket_versioning(Bucket=bucket)["Status"] == status


def put(client, bucket, body, key="k"):
    return client.put_object(Bucket=bucket, Key=key, Body=body).get("VersionId")


def read(client, bucket, key="k", **more):
    return client.get_object(Bucket=bucket, Key=key, **more)["Body"].read()


def test_versions_are_kept(client, bucket):
    put(client, bucket, b"before")
    enable(client, bucket)
    one, two = put(client, bucket, b"one"), put(client, bucket, b"two")
    assert one != two and one and two
    assert read(client, bucket) == b"two"
    assert read(client, bucket, VersionId=one) == b"one"
    assert read(client, bucket, VersionId="null") == b"before"
    head = client.head_object(Bucket=bucket, Key="k", VersionId=one)
    assert (head["VersionId"], head["ContentLength"]) == (one, 3)
    listed = client.list_object_versions(Bucket=bucket)["Versions"]
    assert [(v["VersionId"], v["IsLatest"]) for v in listed] == [
        (two, True), (one, False), ("null", False)
    ]


def test_delete_marker(client, bucket, refused):
    enable(client, bucket)
    version = put(client, bucket, b"x")
    gone = client.delete_object(Bucket=bucket, Key="k")
    assert gone["DeleteMarker"] and gone["VersionId"] != version
    with refused("NoSuchKey", 404):
        read(client, bucket)
    with refused("MethodNotAllowed", 405):
        read(client, bucket, VersionId=gone["VersionId"])
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert read(client, bucket, VersionId=version) == b"x"
    markers = client.list_object_versions(Bucket=bucket)["DeleteMarkers"]
    assert [m["VersionId"] for m in markers] == [gone["VersionId"]] and markers[0]["IsLatest"]
    undone = client.delete_object(Bucket=bucket, Key="k", VersionId=gone["VersionId"])
    assert undone["DeleteMarker"]
    assert read(client, bucket) == b"x"


def test_delete_a_version_for_good(client, bucket, refused):
    enable(client, bucket)
    one, two = put(client, bucket, b"one"), put(client, bucket, b"two")
    assert client.delete_object(Bucket=bucket, Key="k", VersionId=two)["VersionId"] == two
    assert read(client, bucket) == b"one"
    with refused("NoSuchVersion", 404):
        read(client, bucket, VersionId=two)
    many = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "VersionId": one}]})
    assert many["Deleted"][0]["VersionId"] == one
    assert "Versions" not in client.list_object_versions(Bucket=bucket)


def test_suspended_writes_the_null_version(client, bucket):
    enable(client, bucket)
    kept = put(client, bucket, b"kept")
    enable(client, bucket, "Suspended")
    put(client, bucket, b"null 1")
    put(client, bucket, b"null 2")
    assert read(client, bucket) == read(client, bucket, VersionId="null") == b"null 2"
    assert read(client, bucket, VersionId=kept) == b"kept"
    assert len(client.list_object_versions(Bucket=bucket)["Versions"]) == 2


def test_copy_and_multipart_make_versions(client, bucket):
    enable(client, bucket)
    old = put(client, bucket, b"old")
    put(client, bucket, b"new")
    source = {"Bucket": bucket, "Key": "k", "VersionId": old}
    copied = client.copy_object(Bucket=bucket, Key="c", CopySource=source)
    assert copied["CopySourceVersionId"] == old and copied["VersionId"]
    assert read(client, bucket, "c") == b"old"
    upload = client.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
    part = client.upload_part(Bucket=bucket, Key="c", UploadId=upload, PartNumber=1, Body=b"parts")
    done = client.complete_multipart_upload(
        Bucket=bucket, Key="c", UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
    )
    assert done["VersionId"]
    assert read(client, bucket, "c", VersionId=copied["VersionId"]) == b"old"
    assert read(client, bucket, "c") == b"parts"


def test_list_versions_by_pages(client, bucket):
    enable(client, bucket)
    made = [(key, put(client, bucket, b"x", key)) for key in ("a", "b/1", "b/2") for _ in range(3)]
    client.delete_object(Bucket=bucket, Key="a")
    pages = client.get_paginator("list_object_versions").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 2}
    )
    versions, markers = [], []
    for page in pages:
        versions += [(v["Key"], v["VersionId"]) for v in page.get("Versions", [])]
        markers += page.get("DeleteMarkers", [])
    assert sorted(versions) == sorted(made) and len(markers) == 1
    grouped = client.list_object_versions(Bucket=bucket, Delimiter="/")
    assert [one["Prefix"] for one in grouped["CommonPrefixes"]] == ["b/"]


def test_bucket_with_versions_is_not_empty(client, bucket, refused):
    enable(client, bucket)
    put(client, bucket, b"x")
    client.delete_object(Bucket=bucket, Key="k")
    with refused("BucketNotEmpty", 409):
        client.delete_bucket(Bucket=bucket)
