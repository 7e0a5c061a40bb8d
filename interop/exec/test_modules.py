"""The modules that come with the source, beside other implementations of what they do."""

import csv
import hashlib
import io
import random

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from PIL import Image

from execution import Refused
from modules import built
from rpc_interface import Interface, bearer

pytestmark = pytest.mark.timeout(600)

MIB = 1 << 20
# A program that is not optimised may take longer to compile a module than a call usually may.
FLAGS = ["--exec-deadline", "60000"]


@pytest.fixture
def run(place):
    """`run(module, function, [values], words)`: what the function writes of these values."""

    def call(name, function, values, words=()):
        keys = [place.put(f"in-{at}", value) for at, value in enumerate(values)]
        inputs = [f"fb://values/{key}" for key in keys]
        return place.forebay("exec", name, *inputs, "--function", function, "--", *words)

    for name in ("lines", "digest", "zstd", "columns", "image", "blocks"):
        place.admin("module", "add", built(name), "--name", name)
    return call


def test_lines_are_counted_and_found(run):
    rng = random.Random(3)
    lines = [rng.choice(["error: ", "info: ", "", "Fehler: ß "]) + rng.randbytes(rng.randrange(60)).hex() for _ in range(40_000)]
    text = "\n".join(lines).encode()
    assert len(text) > 2 * MIB
    assert run("lines", "count", [text, b"\n\n"]) == b"%d\n" % (text.count(b"\n") + 2)
    assert run("lines", "run", [b""]) == b"0\n"
    with_it = [line for line in lines if "ab" in line]
    assert run("lines", "grep", [text], ["ab"]).decode().split("\n")[:-1] == with_it
    assert run("lines", "grep", [text], ["-c", "ab"]) == b"%d\n" % len(with_it)
    without = [line for line in lines if "error" not in line]
    assert run("lines", "grep", [text], ["-v", "error"]).decode().split("\n")[:-1] == without
    matching = [line for line in lines if line.startswith("Fehler: ß a")]
    assert run("lines", "grep", [text], ["-E", "^Fehler: . a"]).decode().split("\n")[:-1] == matching
    # A line longer than what is read at once, and bytes that are no text.
    long = b"x" * (3 * MIB) + b"needle\n\xff\xfe needle\nnothing"
    assert run("lines", "grep", [long], ["-c", "needle"]) == b"2\n"
    assert run("lines", "grep", [b"a\nb"], ["b"]) == b"b\n"
    # Empty lines are lines, and nothing is none.
    for text, lines in ((b"", 0), (b"\n", 1), (b"\n\n", 2), (b"a\n\n", 2), (b"\na", 2)):
        for options in (["-v", "x"], ["-E", "^a*$"], [""]):
            assert run("lines", "grep", [text], ["-c", *options]) == b"%d\n" % lines, (text, options)


def test_digests(run, data):
    for size in (0, 1, 63, 64, 65, 100_000, 3 * MIB + 5):
        value = data(size)
        assert run("digest", "sha256", [value]) == hashlib.sha256(value).hexdigest().encode() + b"\n"
    both = "".join(hashlib.sha256(value).hexdigest() + "\n" for value in (b"a", b"b"))
    assert run("digest", "run", [b"a", b"b"]).decode() == both


def test_zstandard_both_ways(run, data):
    text = b"".join(b"line %d of many that are much alike\n" % at for at in range(30_000))
    for value in (b"", b"a", text, data(300_000), bytes(MIB)):
        frame = zstandard.ZstdCompressor(level=9, write_checksum=True).compress(value)
        assert run("zstd", "decompress", [frame]) == value
        made = run("zstd", "compress", [value])
        assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(made)).read() == value
    assert len(run("zstd", "compress", [text])) < len(text) / 4
    two = [zstandard.compress(b"one "), zstandard.compress(b"two")]
    assert run("zstd", "decompress", two) == b"one two"
    # What is to be skipped, in front, between and at the end.
    skipped = bytes.fromhex("512a4d18 05000000") + b"hello"
    assert run("zstd", "decompress", [skipped + two[0] + skipped + two[1] + skipped]) == b"one two"
    refusals(run, [("zstd", "decompress", skipped[:-1], [], "ends early")])


def test_zstandard_that_is_damaged_is_refused(run, data):
    for value in (b"a", data(300_000)):
        frame = zstandard.ZstdCompressor(write_checksum=True).compress(value)
        wrong = frame[:-1] + bytes([frame[-1] ^ 1])
        # The same frame with a raw block's content changed.
        changed = bytearray(frame)
        changed[-5] ^= 1
        refusals(run, [("zstd", "decompress", wrong, [], "checksum"), ("zstd", "decompress", bytes(changed), [], "checksum")])


def stream(output):
    return pyarrow.ipc.open_stream(io.BytesIO(output)).read_all()


def table(rows):
    rng = numpy.random.default_rng(7)
    return pyarrow.table({
        "id": pyarrow.array(range(rows), pyarrow.int64()),
        "name": [f"name {at % 97}" if at % 11 else None for at in range(rows)],
        "weight": rng.random(rows),
        "tags": [[f"t{at % 3}", "x"][: at % 3] for at in range(rows)],
        "seen": pyarrow.array([at * 1000 for at in range(rows)], pyarrow.timestamp("us")),
    })


@pytest.mark.parametrize("compression", ["snappy", "gzip", "lz4", "zstd", "none"])
@pytest.mark.parametrize("page", ["1.0", "2.0"])
def test_columns_of_parquet(run, compression, page):
    whole = table(20_000)
    file = io.BytesIO()
    pyarrow.parquet.write_table(whole, file, compression=compression, row_group_size=6_000, data_page_version=page)
    value = file.getvalue()
    for columns in (["weight"], ["seen", "name"], ["tags", "id"]):
        got = stream(run("columns", "run", [value], columns))
        assert got.equals(whole.select([name for name in whole.column_names if name in columns]))
    assert stream(run("columns", "parquet", [value, value])).num_rows == 40_000


def test_a_projection_reads_what_it_needs(place, run):
    whole = table(100_000)
    file = io.BytesIO()
    pyarrow.parquet.write_table(whole, file, compression="none", use_dictionary=False)
    place.put("wide", file.getvalue())
    client = Interface(place.channel, bearer(*place.keys))
    inputs = [client.message("ExecuteInput", namespace="values", key=b"wide")]
    parts = list(client.call("Execution.Execute", name="columns", inputs=inputs, arguments=b"id\0", capacity=64 << 20))
    read = parts[-1].executed.read
    metadata = pyarrow.parquet.read_metadata(file)
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    needed = sum(group.column(0).total_compressed_size for group in groups) + metadata.serialized_size
    assert needed <= read < needed * 1.02, f"{read} bytes, {needed} of {len(file.getvalue())} are needed"


def test_columns_of_csv(run):
    rng = random.Random(5)
    rows = [["id", "text", "price", "sold"]]
    for at in range(20_000):
        text = rng.choice(["plain", 'with "quotes"', "a, comma", "two\nlines", "", "ü"])
        rows.append([str(at), text, "" if at % 9 == 0 else repr(at / 8), rng.choice(["true", "false", ""])])
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    value = file.getvalue().encode()
    got = stream(run("columns", "run", [value], ["price:f64", "text", "id:i64", "sold:bool"]))
    assert got.column_names == ["id", "text", "price", "sold"]
    assert got["id"].to_pylist() == [int(row[0]) for row in rows[1:]]
    assert got["text"].to_pylist() == [row[1] for row in rows[1:]]
    assert got["price"].to_pylist() == [float(row[2]) if row[2] else None for row in rows[1:]]
    assert got["sold"].to_pylist() == [{"true": True, "false": False, "": None}[row[3]] for row in rows[1:]]
    semicolons = run("columns", "csv", [b"a;b\n1;2\n", b"a;b\n3;4"], ["--delimiter=;", "b"])
    assert stream(semicolons)["b"].to_pylist() == ["2", "4"]


def test_each_input_is_told_by_its_first_bytes(run):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": ["1"], "b": ["2"]}), file)
    inputs = [file.getvalue(), b"a,b\n3,4\n"]
    for order in (1, -1):
        assert stream(run("columns", "run", inputs[::order], ["b"]))["b"].to_pylist() == ["2", "4"][::order]


def refusals(run, cases):
    for name, function, value, words, said in cases:
        with pytest.raises(Refused) as refused:
            run(name, function, [value], words)
        assert said in str(refused.value), refused.value


def test_what_is_no_such_file_is_refused_in_words(run):
    refusals(run, [
        ("columns", "parquet", b"PAR1 and no more", [], ""),
        ("columns", "csv", b"a,b\n1,2\n3\n", [], "fields"),
        ("columns", "csv", b"a,b\n1,2\n", ["c"], "no column c"),
        ("columns", "csv", b"a,b\nx,2\n", ["a:i64"], "not of its column's type"),
        ("image", "run", b"GIF89a", ["8", "8"], "neither a JPEG nor a PNG"),
        ("image", "run", b"", ["8"], "WIDTH HEIGHT"),
        ("zstd", "decompress", b"not zstd at all", [], ""),
        ("blocks", "int8", b"\x00\x7c", [], "no number"),
        ("blocks", "int8", b"abc", [], "half an element"),
        ("blocks", "gather", b"abcd", ["2", "2"], "no block 2"),
        ("lines", "grep", b"", [], "PATTERN"),
        ("lines", "walk", b"", [], ""),
    ])


def picture(width, height):
    """Something with gradients and edges."""
    x, y = numpy.meshgrid(numpy.arange(width), numpy.arange(height))
    red = 128 + 100 * numpy.sin(x / 17) * numpy.cos(y / 23)
    green = (x * 255 / width + y * 40 / height) % 256
    blue = numpy.where((x // 32 + y // 32) % 2, 210, 40)
    return Image.fromarray(numpy.stack([red, green, blue], axis=-1).astype(numpy.uint8))


def encoded(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def close(ours, theirs, most, mean):
    away = numpy.abs(ours.astype(float) - theirs.astype(float))
    assert away.max() <= most and away.mean() <= mean, f"off by {away.max()}, {away.mean()} in the mean"


@pytest.mark.parametrize("size", [(224, 224), (640, 480), (100, 37), (900, 700)])
def test_png_is_resized_as_pillow_does(run, size):
    image = picture(640, 480)
    for form in (image, image.convert("L"), image.convert("RGBA"), image.quantize(64)):
        output = run("image", "tensor", [encoded(form, "PNG")], [*map(str, size), "layout=nhwc"])
        ours = numpy.load(io.BytesIO(output))
        theirs = numpy.asarray(form.convert("RGB").resize(size, Image.Resampling.BILINEAR))
        assert ours.shape == (1, size[1], size[0], 3)
        close(ours[0], theirs, 1, 0.2)


def test_jpeg_becomes_a_batch_of_normalised_tensors(run):
    images = [picture(333, 222), picture(640, 480).convert("L")]
    files = [encoded(images[0], "JPEG", quality=92, subsampling=0), encoded(images[1], "JPEG", quality=85)]
    files.append(encoded(images[0], "JPEG", quality=80, progressive=True))
    theirs = [Image.open(io.BytesIO(file)).convert("RGB").resize((64, 48), Image.Resampling.BILINEAR) for file in files]
    output = run("image", "run", files, ["64", "48"])
    ours = numpy.load(io.BytesIO(output))
    assert ours.shape == (3, 3, 48, 64) and ours.dtype == numpy.uint8
    for one, other in zip(ours, theirs):
        # Decoders differ in how they round, and in how they smooth what has less colour than light.
        close(one, numpy.asarray(other).transpose(2, 0, 1), 12, 1.5)
    raw = run("image", "run", files, ["64", "48", "form=raw", "type=f32", "mean=0.5,0.4,0.3", "std=0.2,0.25,0.5"])
    floats = numpy.frombuffer(raw, "<f4").reshape(3, 3, 48, 64)
    mean, deviation = numpy.array([0.5, 0.4, 0.3]), numpy.array([0.2, 0.25, 0.5])
    wanted = (ours / 255.0 - mean[:, None, None]) / deviation[:, None, None]
    assert numpy.allclose(floats, wanted, atol=1e-5)


def test_images_that_end_early_are_refused(run):
    image = picture(640, 480)
    files = [encoded(image, "PNG"), encoded(image, "JPEG"), encoded(image, "JPEG", progressive=True),
             encoded(image.convert("L"), "JPEG")]
    for file in files:
        # What may be missing of a PNG's last chunk is none of its pixels.
        least = 1 if file.startswith(b"\xff\xd8") else 13
        for length in (len(file) // 2, len(file) * 9 // 10, *(len(file) - cut for cut in range(least, 17))):
            refusals(run, [("image", "run", file[:length], ["64", "48"], "failed with code 1")])


def test_a_jpeg_ends_where_its_image_does(run):
    """A thumbnail has an end of its own, and what follows the image's is not looked at."""
    file = encoded(picture(640, 480), "JPEG")
    thumbnail = encoded(picture(64, 48), "JPEG")
    segment = b"\xff\xe1" + (2 + len(thumbnail)).to_bytes(2, "big") + thumbnail
    with_thumbnail = file[:2] + segment + file[2:]
    refusals(run, [("image", "run", with_thumbnail[:-2], ["64", "48"], "ends early")])
    whole = run("image", "run", [file], ["64", "48"])
    for more in (with_thumbnail, file + b"and more"):
        assert run("image", "run", [more], ["64", "48"]) == whole


def test_blocks_are_quantised_and_gathered(run):
    rng = numpy.random.default_rng(11)
    halves = (rng.standard_normal(64 * 1024) * 3).astype(numpy.float16)
    halves[:128] = 0
    halves[128:256] = numpy.float16(6e-8)
    for group in (128, 64, 1000):
        output = run("blocks", "int8", [halves.tobytes()], [str(group)])
        groups = -(-len(halves) // group)
        scales = numpy.frombuffer(output[: groups * 4], "<f4")
        codes = numpy.frombuffer(output[groups * 4:], numpy.int8)
        padded = numpy.zeros(groups * group, numpy.float32)
        padded[: len(halves)] = halves
        wanted = numpy.abs(padded.reshape(groups, group)).max(axis=1) / numpy.float32(127)
        assert numpy.array_equal(scales, wanted)
        of_each = numpy.repeat(scales, group)[: len(halves)]
        with numpy.errstate(divide="ignore", invalid="ignore"):
            exact = numpy.where(of_each > 0, halves.astype(numpy.float32) / of_each, 0)
        assert numpy.array_equal(codes, numpy.rint(exact).astype(numpy.int8))
    blocks = halves.tobytes()
    parts = [blocks[:100_000], blocks[100_000:]]
    indices = [5, 0, 24, 24, 12]
    picked = b"".join(blocks[at * 4096:(at + 1) * 4096] for at in indices)
    assert run("blocks", "gather", parts, ["4096", *map(str, indices)]) == picked
    both = run("blocks", "gather_int8", parts, ["128", "4096", *map(str, indices)])
    assert both == run("blocks", "int8", [picked], ["128"])
