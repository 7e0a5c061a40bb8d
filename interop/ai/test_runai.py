"""runai-model-streamer: safetensors read in parallel ranges, straight from the bucket."""

import json
import struct

import torch
from runai_model_streamer import SafetensorsStreamer


def safetensors(tensors):
    """The format in short: header length, JSON header, then the bytes."""
    header, body = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.numpy().tobytes()
        header[name] = {
            "dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(raw)]
        }
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def test_stream(s3, bucket, plain, monkeypatch):
    tensors = {"a": torch.rand(1500, 1000), "b": torch.rand(3), "c": torch.rand(700, 1000)}
    plain.put_object(Bucket=bucket, Key="m/model.safetensors", Body=safetensors(tensors))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0")
    monkeypatch.setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", str(5 << 20))
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(f"s3://{bucket}/m/model.safetensors")
        seen = {name: tensor.clone() for name, tensor in streamer.get_tensors()}
    assert seen.keys() == tensors.keys()
    assert all(torch.equal(seen[name], tensors[name]) for name in tensors)
