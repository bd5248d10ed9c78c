from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvconn.identity import files
from kvconn.identity.files import Digests, FileId, UnknownIdentity, first_changed_since, hash_file


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read."""
    names: list[str] = []

    def hash_and_note(file: FileId) -> str:
        names.append(os.path.basename(file.path))
        return hash_file(file)

    monkeypatch.setattr(files, "hash_file", hash_and_note)
    return names


def test_digests_are_made_once_and_kept_for_other_processes(tmp_path: Path, hashed: list[str]) -> None:
    data = {"a": b"x" * 5_000_000, "b": b""}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    ids = [FileId.of(tmp_path / n) for n in data]
    want = {str(tmp_path / n): sha256(c) for n, c in data.items()}
    for _ in range(2):
        assert Digests(tmp_path / "kept").of(ids) == want
    assert sorted(hashed) == ["a", "b"]


@pytest.mark.parametrize("directory", [None, "/proc/nowhere"])
def test_without_a_place_to_keep_them_digests_are_made_each_time(
    tmp_path: Path, hashed: list[str], directory: str | None
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    for _ in range(2):
        digests = Digests(Path(directory) if directory else None)
        assert list(digests.of([FileId.of(tmp_path / "a")]).values()) == [sha256(b"a")]
    assert hashed == ["a", "a"]


def test_a_file_changed_under_equal_size_and_time_is_read_again(tmp_path: Path, hashed: list[str]) -> None:
    path, kept = tmp_path / "a", Digests(tmp_path / "kept")
    path.write_bytes(b"old")
    before = FileId.of(path)
    kept.of([before])
    with path.open("r+b") as f:
        f.write(b"new")
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns))
    after = FileId.of(path)
    assert (after.size, after.mtime_ns, after.inode) == (before.size, before.mtime_ns, before.inode)
    assert kept.of([after]) == {str(path): sha256(b"new")}
    assert hashed == ["a", "a"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:70] + bytes([b[70] ^ 1]) + b[71:], lambda b: b"", lambda b: b"[" * 9999]
)
def test_damage_to_what_is_kept_costs_reading_the_files_again(
    tmp_path: Path, hashed: list[str], damage: object
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    ids = [FileId.of(tmp_path / "a")]
    want = Digests(tmp_path / "kept").of(ids)
    (kept,) = (tmp_path / "kept").glob("*.json")
    kept.write_bytes(damage(kept.read_bytes()))  # type: ignore[operator]
    assert Digests(tmp_path / "kept").of(ids) == want
    assert hashed == ["a", "a"]


@pytest.mark.parametrize("how", ["group", "others", "owner", "link", "hard link", "pipe"])
def test_what_others_may_have_written_is_not_believed(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a")
    ids = [FileId.of(path)]
    directory = tmp_path / "kept"
    Digests(directory).of(ids)
    (kept,) = directory.glob("*.json")
    body = json.dumps([(ids[0], sha256(b"forged"))]).encode()
    kept.write_bytes(sha256(body).encode() + b"\n" + body)
    assert Digests(directory).of(ids) == {str(path): sha256(b"forged")}, "the forgery is one"
    if how == "group":
        kept.chmod(0o620)
    elif how == "others":
        kept.chmod(0o602)
    elif how == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(kept, 65534, 65534)
    elif how == "link":
        kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(tmp_path / "elsewhere")
    elif how == "hard link":
        os.link(kept, tmp_path / "elsewhere")
    else:
        kept.unlink()
        os.mkfifo(kept)
    assert Digests(directory).of(ids) == {str(path): sha256(b"a")}
    assert Digests(directory).of(ids) == {str(path): sha256(b"a")}
    assert hashed == ["a", "a"], "what was made then is kept"


def test_digests_are_not_kept_where_nothing_tells_a_change(tmp_path: Path, hashed: list[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    # Another build of an image has the same times, sizes and inodes.
    fixed = FileId.of(path)._replace(ctime_ns=10**9, mtime_ns=10**9)

    class Image(FileId):
        @classmethod
        def of(cls, path: str | Path) -> FileId:
            return fixed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "FileId", Image)
        patch.setattr(FileId, "of", Image.of)
        assert Digests(tmp_path / "kept").of([fixed]) == {str(path): sha256(b"one")}
        path.write_bytes(b"two")
        assert Digests(tmp_path / "kept").of([fixed]) == {str(path): sha256(b"two")}
    assert hashed == ["a", "a"]


def test_old_digests_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_KEPT", 3)
    for i in range(6):
        path = tmp_path / str(i)
        path.write_bytes(b"x")
        Digests(tmp_path / "kept").of([FileId.of(path)])
    assert len(list((tmp_path / "kept").glob("*.json"))) == 3
    assert len(list((tmp_path / "kept").iterdir())) == 6  # with the locks


def test_a_blob_of_the_hub_is_known_by_its_name(tmp_path: Path, hashed: list[str]) -> None:
    repository = tmp_path / "models--o--m"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    named = {"w.safetensors": "ab" * 32, "config.json": "cd" * 20, "loose.bin": ""}
    for name, blob in named.items():
        if blob:
            (repository / "blobs" / blob).write_bytes(b"content")
            (snapshot / name).symlink_to(f"../../blobs/{blob}")
        else:
            (snapshot / name).write_bytes(b"content")
    got = Digests(None).of([FileId.of(snapshot / n) for n in named])
    assert [got[str(snapshot / n)] for n in named] == ["ab" * 32, sha256(b"content"), sha256(b"content")]
    assert sorted(hashed) == ["config.json", "loose.bin"]


def test_a_directory_called_blobs_is_not_the_hubs(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    path = tmp_path / "blobs" / ("ab" * 32)
    path.write_bytes(b"x")
    assert files.hub_digest(path) is None


def test_a_file_that_changes_is_not_hashed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    before = FileId.of(path)
    path.write_bytes(b"newer")
    with pytest.raises(UnknownIdentity, match="changing"):
        hash_file(before)


def test_this_process_started_a_moment_ago() -> None:
    assert 0 <= time.time() - files.started_at() < 3600


def test_what_changes_after_a_point_in_time_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CLOCK_MARGIN_S", 0.0)
    root = tmp_path / "models" / "m"
    root.mkdir(parents=True)
    file, link = root / "w", root / "link"
    file.write_bytes(b"w")
    link.symlink_to("w")
    (tmp_path / "linked").symlink_to("models")
    ids = [FileId.of(file), FileId.of(link)]

    def since(act: Callable[[], object]) -> str | None:
        time.sleep(0.02)
        now = time.time()
        time.sleep(0.02)
        act()
        return first_changed_since(root, [FileId.of(i.path) for i in ids], now)

    def replace_link() -> None:
        link.unlink()
        link.symlink_to("w")

    def through_a_link(act: Callable[[], object]) -> str | None:
        nonlocal root
        root = tmp_path / "linked" / "m"
        return since(act)

    def rename_above() -> None:
        (tmp_path / "models").rename(tmp_path / "other")
        (tmp_path / "other").rename(tmp_path / "models")

    assert since(lambda: None) is None
    assert since(lambda: (tmp_path / "models" / "neighbour").mkdir()) is None
    assert since(lambda: os.utime(file)) == str(file)
    assert since(replace_link) == str(link)
    assert since(lambda: (root / "new").touch()) == str(root)
    assert since(rename_above) == str(tmp_path / "models")
    assert through_a_link(lambda: (tmp_path / "models" / "another").mkdir()) is None
    assert through_a_link(rename_above) == str(tmp_path / "linked")


def test_one_unreadable_file_of_many_is_an_error(tmp_path: Path) -> None:
    paths = [tmp_path / str(i) for i in range(50)]
    for path in paths:
        path.write_bytes(b"x")
    ids = [FileId.of(p) for p in paths]
    paths[25].unlink()
    with pytest.raises(FileNotFoundError):
        Digests(None).of(ids)
