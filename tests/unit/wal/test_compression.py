"""Compressed values: always applied, exact on the way back, bounded when hostile, optional to install (W-3, W-31)."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import lz4.block
import pytest
import zstandard
from crc32c import crc32c

from tests.unit.wal import kit
from topics.errors import CompressionFailed, DecompressionFailed
from topics.wal import Record
from topics.wal.record import encode_varint

FLAGS = {"lz4": 0x04, "zstd": 0x08}


def stored(method: str, value: bytes) -> bytes:
    """A record whose stored value is `value`, whatever it decompresses to."""
    body = b"\x01" + encode_varint(len(value)) + bytes([FLAGS[method]]) + b"k" + value
    return body + crc32c(body).to_bytes(4, "little")


def stored_value(record: Record) -> bytes:
    raw = record.encode()
    head = 1 + len(encode_varint(len(raw))) + 1 + len(record.key)
    return raw[head:-4] if len(raw) > 140 else raw[3 + len(record.key) : -4]


@pytest.mark.parametrize("method", ["lz4", "zstd"])
@pytest.mark.parametrize("value", [b"", b"x", bytes(range(256))])
def test_a_requested_compression_is_applied_also_when_it_does_not_shrink(method: str, value: bytes) -> None:
    """W-31."""
    record = Record.put(b"k", value).with_compression(method)
    raw = record.encode()
    assert len(raw) > len(Record.put(b"k", value).encode())
    assert Record.decode(raw) == (record, len(raw))


def test_a_zstd_value_is_a_standard_frame_of_level_3() -> None:
    """W-31."""
    value = b"the quick brown fox " * 5
    kept = stored_value(Record.put(b"k", value).with_compression("zstd"))
    assert kept == zstandard.ZstdCompressor(level=3).compress(value)
    assert kept[:4].hex() == "28b52ffd"


def test_an_lz4_value_is_its_length_and_a_raw_block() -> None:
    """W-31."""
    value = b"the quick brown fox " * 5
    kept = stored_value(Record.put(b"k", value).with_compression("lz4"))
    assert kept[:1] == encode_varint(100)
    assert lz4.block.decompress(kept[1:], uncompressed_size=100) == value


def test_the_key_is_never_compressed() -> None:
    """07 §3."""
    for method in FLAGS:
        assert b"k" * 100 in Record.put(b"k" * 100, b"v").with_compression(method).encode()


@pytest.mark.parametrize("claim", [0, 1, 59, 61, 254, 60 * 255, 2**31 - 1, 2**31, 2**63, 2**64 - 1])
def test_an_lz4_value_that_lies_about_its_length_is_refused(claim: int) -> None:
    """W-32: decompression is checked against the promised length."""
    block = lz4.block.compress(b"abc" * 20, store_size=False)
    with pytest.raises(DecompressionFailed):
        Record.decode(stored("lz4", encode_varint(claim) + block))


@pytest.mark.parametrize("value", [b"", b"\x80", b"\xff" * 11, b"\x05", b"\x05\xff\xff", b"\x3c" + bytes(20)])
def test_an_lz4_value_that_is_no_block_is_refused(value: bytes) -> None:
    """W-32."""
    with pytest.raises(DecompressionFailed):
        Record.decode(stored("lz4", value))


ZSTD = zstandard.ZstdCompressor(level=3).compress(b"abc" * 200)


@pytest.mark.parametrize(
    "value",
    [b"", ZSTD[:4], ZSTD[:-1], ZSTD[: len(ZSTD) // 2], ZSTD + b"\x00", ZSTD + ZSTD, b"\x00" + ZSTD, b"no frame at all"],
    ids=["empty", "magic", "cut", "half", "behind", "two", "before", "noise"],
)
def test_a_zstd_value_that_is_not_exactly_one_frame_is_refused(value: bytes) -> None:
    """W-31: a standard frame."""
    with pytest.raises(DecompressionFailed):
        Record.decode(stored("zstd", value))


def test_a_zstd_frame_without_a_content_size_decodes() -> None:
    """W-31: a standard frame may have been written as a stream."""
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    value = b"abc" * 70_000
    frame = stream.compress(value) + stream.flush()
    assert Record.decode(stored("zstd", frame))[0].value == value


def zstd_bomb(mebibytes: int) -> bytes:
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return b"".join([*(stream.compress(bytes(1 << 20)) for _ in range(mebibytes)), stream.flush()])


def test_a_zstd_bomb_is_refused_before_it_fills_the_memory() -> None:
    """W-32, R-7: a gibibyte of zeros in some kilobytes."""
    bomb = stored("zstd", zstd_bomb(1024))
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionFailed):
            Record.decode(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 512 << 20


def test_an_lz4_bomb_is_refused_before_anything_is_allocated() -> None:
    """W-32: a claim of two gibibytes in ten bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionFailed):
            Record.decode(stored("lz4", encode_varint(2**31 - 1) + b"\x1fa\x01\x00\xff\xff"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def uninstall(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    for module in ("lz4", "lz4.block") if method == "lz4" else ("zstandard",):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize("method", ["lz4", "zstd"])
def test_a_compression_that_is_not_installed_fails_and_nothing_is_written(
    disk: kit.Disk, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """W-3, W-31: CompressionFailed; also for a whole batch."""
    wal, _ = kit.open_wal(disk)
    wal.append(kit.put(1))
    before = disk.files()
    uninstall(monkeypatch, method)
    bad = Record.put(b"k", b"v").with_compression(method)
    with pytest.raises(CompressionFailed):
        wal.append(bad)
    with pytest.raises(CompressionFailed):
        wal.append_batch([kit.put(2), bad])
    assert disk.files() == before
    wal.append(kit.put(3))
    assert kit.numbers(wal) == [1, 3]
    wal.close()


@pytest.mark.parametrize("method", ["lz4", "zstd"])
def test_the_reason_of_a_missing_compression_is_kept(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """W-3: the import error is the cause, the message names the extra."""
    uninstall(monkeypatch, method)
    with pytest.raises(CompressionFailed, match="wal-compress") as caught:
        Record.put(b"k", b"v").with_compression(method).encode()
    assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.parametrize("method", ["lz4", "zstd"])
def test_recovery_keeps_compressed_records_without_the_library(
    disk: kit.Disk, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """W-60: recovery verifies checksums; a missing extra is no reason to cut."""
    wal, _ = kit.open_wal(disk)
    wal.append(Record.put(b"k", b"v").with_compression(method))
    wal.close()
    with monkeypatch.context() as without:
        uninstall(without, method)
        wal, info = kit.open_wal(disk)
        wal.close()
    assert (info.valid_records, info.bytes_truncated) == (1, 0)
    wal, _ = kit.open_wal(disk)
    assert kit.records(wal) == [Record.put(b"k", b"v").with_compression(method)]
    wal.close()


PLAIN = """
import sys
sys.modules.update({"lz4": None, "lz4.block": None, "zstandard": None})
from topics.wal import Record, Wal, WalConfig
wal, _ = Wal.open(WalConfig(dir=sys.argv[1]))
with wal:
    wal.append(Record.put(b"k", b"v"))
assert not [name for name in sys.modules if name.startswith(("topics.server", "topics.storage", "topics.engine"))]
"""


def test_a_plain_install_works_alone_without_compression_and_without_the_server(tmp_path: object) -> None:
    """W-3."""
    subprocess.run([sys.executable, "-W", "error", "-c", PLAIN, f"{tmp_path}/log"], check=True, timeout=60)


def test_windows_is_told_at_import(tmp_path: object) -> None:
    """W-12: `import topics.wal` raises UnsupportedPlatform."""
    code = (
        "import sys; import topics.errors; sys.platform = 'win32'\n"
        "try:\n    import topics.wal\nexcept topics.errors.UnsupportedPlatform: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 7
