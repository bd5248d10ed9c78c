"""Digests of files: of their whole content, kept as long as the files are untouched."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

CLOCK_MARGIN_S = 1.0
"""How much older than an event a file must look to have been there before it: clocks are coarse."""
_READ_BYTES = 4 << 20
_MAX_THREADS = 8
_NICENESS = 10
_MAX_KEPT = 256
"""Sets of files whose digests are kept on disk."""
_MAX_KEPT_BYTES = 16 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class UnknownIdentity(ValueError):
    """Nothing identifies what these bytes are made with: neither load nor save. The message says why."""


class FileId(NamedTuple):
    """A file as its file system describes it. While this stays the same, so does the content.

    The time of the last change (ctime) cannot be set by programs, and every write, rename and
    replacement sets it. `link_ns` is that of the link, where the path is one.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    link_ns: int = 0

    @classmethod
    def of(cls, path: str | Path) -> FileId:
        """Describe the file at path, or the one that it links to. Raises OSError."""
        own = target = os.lstat(path)
        if stat.S_ISLNK(own.st_mode):
            target = os.stat(path)
        link_ns = own.st_ctime_ns if target is not own else 0
        return cls(str(path), target.st_size, target.st_mtime_ns, target.st_ctime_ns, target.st_ino, link_ns)

    def tells_changes(self) -> bool:
        """Whether this is another file's description wherever the content is another, also after years.

        Images of file systems and the like (squashfs, object stores) have no time of the last
        change: two builds can have the same times, sizes and inodes. Theirs are in whole seconds.
        """
        return self.ctime_ns % 1_000_000_000 != 0

    def older_than(self, seconds: float) -> bool:
        """Whether file and link were last changed before a point in time, in seconds since the epoch."""
        return _before(max(self.ctime_ns, self.link_ns), seconds)

    def in_place_since(self, seconds: float) -> bool:
        """Whether a directory was at its place before a point in time, whatever came into it or left it since.

        That sets both of its times. Renaming it sets one.
        """
        moved = self.ctime_ns != self.mtime_ns and not _before(self.ctime_ns, seconds)
        return not moved and _before(self.link_ns, seconds)


def _before(time_ns: int, seconds: float) -> bool:
    return time_ns / 1e9 < seconds - CLOCK_MARGIN_S


def first_changed_since(root: Path, files: Sequence[FileId], seconds: float) -> str | None:
    """Return the first path that may have led elsewhere before a point in time: one of the files or their directories.

    None says that who read the files since has read what they hold now. Raises OSError.
    """
    for file in files:
        if not file.older_than(seconds):
            return file.path
    directories = {root, *(d for f in files for d in Path(f.path).parents if root in d.parents)}
    for directory in sorted(directories):
        if not FileId.of(directory).older_than(seconds):
            return str(directory)
    for above in sorted({*root.parents, *Path(os.path.realpath(root)).parents}):
        if not FileId.of(above).in_place_since(seconds):
            return str(above)
    return None


def started_at() -> float:
    """Return when this process started, in seconds since the epoch. Raises UnknownIdentity where nothing tells."""
    try:
        # The name before it may have spaces and parentheses; the 22nd field counts ticks since boot.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError) as err:
        raise UnknownIdentity(f"no telling when the engine was started: {err}") from err


def hub_digest(path: str | Path) -> str | None:
    """Return a file's SHA-256 where the Hugging Face cache has stored it under that name."""
    target = Path(os.path.realpath(path))
    if target.parent.name != "blobs" or not _SHA256.fullmatch(target.name):
        return None
    return target.name if (target.parent.parent / "snapshots").is_dir() else None


def combined(digests: Sequence[tuple[str, str]], kind: str) -> str:
    """Return one digest of named digests, in the order of the names."""
    whole = hashlib.sha256(f"kvconn/{kind}/1".encode())
    for name, digest in sorted(digests):
        whole.update(f"\0{len(name)}\0{name}\0{digest}".encode())
    return whole.hexdigest()


def hash_file(file: FileId) -> str:
    """Return the SHA-256 of a file. Raises UnknownIdentity where it is not, or does not stay, as described."""
    digest = hashlib.sha256()
    with open(file.path, "rb", buffering=0) as f:
        if os.fstat(f.fileno()).st_ino != file.inode or FileId.of(file.path) != file:
            raise UnknownIdentity(f"{file.path} is changing")
        buffer = memoryview(bytearray(min(_READ_BYTES, max(1, file.size))))
        while n := f.readinto(buffer):
            digest.update(buffer[:n])
    if FileId.of(file.path) != file:
        raise UnknownIdentity(f"{file.path} is changing")
    return digest.hexdigest()


class Digests:
    """Digests of sets of large files, made once on a node for all processes of an engine and all its starts.

    `directory` is where they are kept, None to keep none. What is kept there is used only while
    the files are the very same. Where the directory cannot be used every process reads the files.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def of(self, files: Sequence[FileId]) -> dict[str, str]:
        """Return the SHA-256 of each file by its path.

        Takes as long as reading them, or as another process takes that does. Raises OSError, and
        UnknownIdentity where a file changes meanwhile.
        """
        # The link may lead elsewhere by now.
        known = {f.path: digest for f in files if (digest := hub_digest(f.path)) and FileId.of(f.path) == f}
        rest = [f for f in files if f.path not in known]
        if not rest:
            return known
        name = hashlib.sha256("\0".join(f.path for f in rest).encode()).hexdigest()[:32]
        with self._alone(name) as kept:
            known |= _recall(kept, rest)
            missing = [f for f in rest if f.path not in known]
            known |= _hash_all(missing)
            if kept is not None and any(f.tells_changes() for f in missing):
                _keep(kept, [(f, known[f.path]) for f in rest if f.tells_changes()])
        return known

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[Path | None]:
        """Be the only process that hashes these files, and give the place where their digests are kept."""
        if self._directory is None:
            yield None
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(
                self._directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError:
            yield None
            return
        try:
            with contextlib.suppress(OSError):  # file systems without locks: hashed more than once
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._directory / f"{name}.json"
        finally:
            os.close(lock)


def _hash_all(files: Sequence[FileId]) -> dict[str, str]:
    """Hash files side by side, and out of the engine's way."""
    if not files:
        return {}
    # Daemon threads, unlike those of an executor: a process that ends does not wait for them.
    todo: queue.SimpleQueue[FileId | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[FileId, str | Exception]] = queue.SimpleQueue()
    threads = max(1, min(_MAX_THREADS, len(files), len(os.sched_getaffinity(0)) // 2))
    for file in [*sorted(files, key=lambda f: -f.size), *[None] * threads]:
        todo.put(file)
    for _ in range(threads):
        threading.Thread(target=_hash_some, args=(todo, done), name="kvconn-hash", daemon=True).start()
    known: dict[str, str] = {}
    for _ in files:
        file, result = done.get()
        if isinstance(result, Exception):
            _drain(todo)
            raise result
        known[file.path] = result
    return known


def _drain(todo: queue.SimpleQueue[FileId | None]) -> None:
    """Take all files out of a queue, and leave the marks that end its threads."""
    ends = 0
    with contextlib.suppress(queue.Empty):
        while True:
            ends += todo.get_nowait() is None
    for _ in range(ends):
        todo.put(None)


def _hash_some(todo: queue.SimpleQueue[FileId | None], done: queue.SimpleQueue[tuple[FileId, str | Exception]]) -> None:
    with contextlib.suppress(OSError):  # on Linux of this thread alone
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    while (file := todo.get()) is not None:
        done.put((file, _hash_or_fail(file)))


def _hash_or_fail(file: FileId) -> str | Exception:
    try:
        return hash_file(file)
    except Exception as err:  # noqa: BLE001 - the caller raises it
        return err


def _recall(kept: Path | None, files: Sequence[FileId]) -> dict[str, str]:
    """Return what is kept of files that are still the same."""
    if kept is None:
        return {}
    try:
        check, _, body = _read_own(kept).partition(b"\n")
        if check != hashlib.sha256(body).hexdigest().encode():
            return {}
        entries = {FileId(*described): digest for described, digest in json.loads(body)}
    except (OSError, ValueError, TypeError):
        return {}
    return {f.path: entries[f] for f in files if f.tells_changes() and f in entries}


def _read_own(path: Path) -> bytes:
    """Return the content of a file that nobody else can have written; nothing of any other. Raises OSError.

    What others write could pass weights off as those of another model.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as f:
        is_ = os.fstat(fd)
        own = stat.S_ISREG(is_.st_mode) and is_.st_uid in (0, os.geteuid()) and is_.st_nlink == 1
        if not own or is_.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or is_.st_size > _MAX_KEPT_BYTES:
            return b""
        return f.read(_MAX_KEPT_BYTES)


def _keep(kept: Path, entries: Sequence[tuple[FileId, str]]) -> None:
    """Keep digests of files; those of sets not used for long go. Without room for them nothing is kept."""
    body = json.dumps(entries).encode()
    with contextlib.suppress(OSError):
        fd, name = tempfile.mkstemp(dir=kept.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            os.replace(name, kept)
        except OSError:
            os.unlink(name)
            raise
        others = sorted(kept.parent.glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
        for old in others[_MAX_KEPT:]:
            old.unlink(missing_ok=True)
            old.with_suffix(".lock").unlink(missing_ok=True)
