"""Damage hits exactly what it says, in files and in records."""

import os
import random

import faults
import pytest
from damage import HEADER_BYTES, RECORD_MAGIC
from stores import (
    PAYLOAD_BYTES_AT,
    SEGMENT_MAGIC,
    SLOT_BYTES_AT,
    SLOTS_AT,
    Unit,
    drop_pages,
    file_units,
    physical_bytes,
    record_units,
)
from usage import of_group

PAYLOAD = 64 << 10


def segment(path, records):
    """Write a kvconn segment with records in these of four slots."""
    slot_bytes = HEADER_BYTES + PAYLOAD
    data = bytearray(HEADER_BYTES + 4 * slot_bytes)
    data[: len(SEGMENT_MAGIC)] = SEGMENT_MAGIC
    data[SLOTS_AT : SLOTS_AT + 4] = (4).to_bytes(4, "little")
    data[SLOT_BYTES_AT : SLOT_BYTES_AT + 8] = slot_bytes.to_bytes(8, "little")
    for slot in records:
        at = HEADER_BYTES + slot * slot_bytes
        data[at : at + len(RECORD_MAGIC)] = RECORD_MAGIC
        data[at + PAYLOAD_BYTES_AT : at + PAYLOAD_BYTES_AT + 4] = PAYLOAD.to_bytes(4, "little")
        data[at + HEADER_BYTES : at + slot_bytes] = bytes([slot + 1]) * PAYLOAD
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return [Unit(path, HEADER_BYTES + slot * slot_bytes, slot_bytes) for slot in records]


def test_records_are_found_in_their_slots(tmp_path):
    units = segment(tmp_path / "segments" / "seg-00000001.kv", [0, 2])
    (tmp_path / "segments" / "other").write_bytes(bytes(100))
    assert record_units(tmp_path) == set(units)


def test_small_and_unfinished_files_are_no_units(tmp_path):
    for name, size in (("a", 20 << 10), ("config.json", 100), ("b.tmp", 20 << 10)):
        (tmp_path / name).write_bytes(bytes(size))
    assert file_units(tmp_path) == {Unit(tmp_path / "a", 0, 20 << 10)}
    assert physical_bytes(tmp_path) >= 44 << 10
    drop_pages(tmp_path)


@pytest.mark.parametrize(("harm", "changed"), [(faults.flip_bit, 1), (faults.zero_page, 4096)])
def test_damage_stays_within_its_unit(tmp_path, harm, changed):
    path = tmp_path / "f"
    data = random.Random(3).randbytes(200_000).replace(b"\0", b"\1")
    path.write_bytes(data)
    unit = Unit(path, 8192, 100_000)
    harm(unit)
    different = [i for i, (a, b) in enumerate(zip(data, path.read_bytes(), strict=True)) if a != b]
    assert len(different) == changed
    assert unit.offset <= different[0]
    assert different[-1] < unit.offset + unit.length


def test_swapped_records_are_whole_and_twice_is_none(tmp_path):
    path = tmp_path / "segments" / "seg-00000001.kv"
    one, other = segment(path, [0, 3])
    before = path.read_bytes()
    faults.swap(one, other)
    after = path.read_bytes()
    assert after[one.offset : one.offset + one.length] == before[other.offset : other.offset + other.length]
    faults.swap(one, other)
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="bytes"):
        faults.swap(one, Unit(path, 0, 5))


def test_a_cut_ends_the_file_in_the_unit(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(30_000))
    faults.cut(Unit(path, 10_000, 10_000))
    assert path.stat().st_size == 15_000


def test_usage_of_this_process_group():
    used = of_group(os.getpgid(0))
    assert used.peak_bytes > 1 << 20
    assert of_group(None).peak_bytes == 0
    both = used.then(used)
    assert both.peak_bytes == used.peak_bytes
    assert both.cpu_s == pytest.approx(2 * used.cpu_s)
