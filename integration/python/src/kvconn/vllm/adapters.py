"""LoRA adapters, told apart by what they contain. For the scheduler's process."""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvconn.identity.files import FileId, UnknownIdentity, combined, first_changed_since, hash_file

_CONFIG = "adapter_config.json"
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt"}
_MAX_FILES = 64
_MAX_BYTES = 8 << 30
"""Adapters are small, and hashed whole. A larger one is not cached."""
_MAX_ADAPTERS = 20_000
"""Names that are remembered. Requests of further ones are not cached."""
_PATIENCE_S = 0.5
"""How long requests are held back for the digest of an adapter that was never seen before."""
_TICK_S = 0.02
"""More than a tick of the clock that stamps files."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

T = TypeVar("T")


@dataclass
class _Adapter:
    """What is known of the adapter with a name."""

    path: str
    variant: str
    """How the engine reads its files."""
    root: Path = Path()
    files: tuple[FileId, ...] = ()
    """What tells that it is untouched: the files that it is made of, and those that lead to them."""
    scope: str = ""
    """What separates its KV from others', once its files are hashed."""
    refused: str = ""
    """Why nothing with this adapter is loaded or saved."""
    number: int = 0
    """The engine's, as it was last."""
    met_at: float = field(default_factory=time.monotonic)


class Adapters:
    """Knows the content of the adapters that the engine computes with, by their names.

    The engine loads an adapter when it is told to, or when a request first needs it, keeps it in
    memory, and may load it again from the same path at any time. Its own prefix cache goes by the
    adapter's name. So a name stands for the content that it had before its first load, as long as
    its files stay untouched. Once they change nobody knows what a block was computed with, and
    nothing with that name is loaded or saved until the engine is restarted.

    `loading_since` is a point in time before the engine could load any adapter. `sees_loads` says
    that `loading` hears of each load that no request causes. `settings` are those of the engine
    that change what an adapter does. For one thread.
    """

    def __init__(self, loading_since: float, sees_loads: bool, settings: str, logger: logging.Logger) -> None:
        self._settings = settings
        self._loading_since = loading_since
        self._sees_loads = sees_loads
        self._logger = logger
        self._by_name: dict[str, _Adapter] = {}
        self._names: dict[int, str] = {}
        self._full = False
        self._broken = False
        self._unhashed: queue.SimpleQueue[tuple[str, _Adapter]] = queue.SimpleQueue()
        self._hasher: threading.Thread | None = None

    def scope(self, lora: Any) -> str | None:
        """Return what separates the KV of an adapter; None where that is not known, or not yet. Costs a few stats."""
        adapter = None if self._broken else self._look(lora)
        return adapter.scope or None if adapter is not None and not adapter.refused else None

    def stands_for(self, name: str) -> str | None:
        """Return the scope of the adapter with a name: empty where it is not cached, None where it is not known yet."""
        adapter = self._by_name.get(name)
        if adapter is None or adapter.refused or self._broken:
            return ""
        return adapter.scope or None

    def soon_known(self, name: str) -> bool:
        """Whether it is worth waiting for the scope of an adapter."""
        adapter = self._by_name.get(name)
        if adapter is None or adapter.scope or adapter.refused or self._broken:
            return False
        return time.monotonic() < adapter.met_at + _PATIENCE_S

    def loading(self, lora: Any, load: Callable[[], T]) -> T:
        """Have the engine load an adapter, whose files are looked at before."""
        known = lora.lora_name in self._by_name
        try:
            self._look(lora)
        except Exception:
            self._logger.exception("kvconn: KV with LoRA adapters is neither loaded nor saved any more")
            self._broken = True
        try:
            return load()
        except BaseException:
            if not known:  # the next attempt is the first, with another number: some ranks may have loaded this one
                self._by_name.pop(lora.lora_name, None)
                self._names[lora.lora_int_id] = ""
            raise

    def untouched(self, name: str) -> tuple[FileId, ...]:
        """Return the files of an adapter and their directory, which must be the same when what it computed is saved.

        None of them where the adapter has changed already. Costs a few stats.
        """
        adapter = self._by_name.get(name)
        if adapter is None or adapter.refused or self._broken:
            return ()
        try:
            directory = FileId.of(adapter.root)
        except OSError:
            return ()
        self._compare(name, adapter, adapter.path)
        return () if adapter.refused else (*adapter.files, directory)

    def _look(self, lora: Any) -> _Adapter | None:
        """Find out whether an adapter is still what it was, or, the first time, what it is."""
        name = lora.lora_name
        adapter = self._by_name.get(name)
        if adapter is None:
            return self._meet(lora)
        if not adapter.refused:
            self._check_number(lora, adapter)
            self._compare(name, adapter, lora.lora_path)
            if adapter.variant != _variant(lora):
                self._refuse(name, adapter, "it is loaded in another way than before")
        return adapter

    def _meet(self, lora: Any) -> _Adapter | None:
        if self._full or len(self._by_name) >= _MAX_ADAPTERS:
            if not self._full:
                self._full = True  # for good: nothing tells when the adapters left out now were loaded
                self._logger.warning("kvconn: more than %d LoRA adapters: further ones are not cached", _MAX_ADAPTERS)
            return None
        adapter = self._by_name[lora.lora_name] = _Adapter(lora.lora_path, _variant(lora))
        self._check_number(lora, adapter)
        try:
            if getattr(lora, "tensorizer_config_dict", None):
                raise UnknownIdentity("it is loaded by tensorizer")
            root, files = adapter.root, adapter.files = _find_settled(lora.lora_path)
            if not self._sees_loads and (p := first_changed_since(root, files, self._loading_since)):
                raise UnknownIdentity(f"{p} has changed since the engine was started, which may have loaded it before")
        except (UnknownIdentity, OSError) as err:
            self._refuse(lora.lora_name, adapter, str(err))
        if not adapter.refused:
            self._hash(lora.lora_name, adapter)
        return adapter

    def _check_number(self, lora: Any, adapter: _Adapter) -> None:
        """Refuse a second adapter with a number: the engine computes with the one that it has under it."""
        if adapter.number and adapter.number != lora.lora_int_id:
            self._names.pop(adapter.number, None)
        adapter.number = lora.lora_int_id
        first = self._names.setdefault(lora.lora_int_id, lora.lora_name)
        if first != lora.lora_name:
            self._refuse(lora.lora_name, adapter, f"its number {lora.lora_int_id} was given to another before")

    def _compare(self, name: str, adapter: _Adapter, path: str) -> None:
        try:
            same = find(path) == (adapter.root, adapter.files)
        except (UnknownIdentity, OSError):
            same = False
        if not same:
            self._refuse(
                name,
                adapter,
                "its files have changed while the engine runs, which may compute with the old ones, the new ones,"
                " or KV of both (restart the engine, or load what is new under another name)",
            )

    def _refuse(self, name: str, adapter: _Adapter, why: str) -> None:
        if not adapter.refused:
            adapter.refused = why
            self._logger.warning("kvconn: KV with LoRA adapter %r is neither loaded nor saved: %s", name, why)

    def _hash(self, name: str, adapter: _Adapter) -> None:
        """Have the files hashed in the background: the scheduler does not wait for it."""
        self._unhashed.put((name, adapter))
        if self._hasher is None:
            self._hasher = threading.Thread(target=self._hash_all, name="kvconn-adapters", daemon=True)
            self._hasher.start()

    def _hash_all(self) -> None:
        while True:
            name, adapter = self._unhashed.get()
            try:
                adapter.scope = f"lora-1:{content(adapter.files, f'{adapter.variant} {self._settings}')}"
            except Exception as err:  # noqa: BLE001 - whatever it is, this adapter is not cached
                self._refuse(name, adapter, str(err))


def _variant(lora: Any) -> str:
    return "3d" if getattr(lora, "is_3d_lora_weight", False) else "2d"


def find(path: str) -> tuple[Path, tuple[FileId, ...]]:
    """Return the directory that the engine loads an adapter from, and the files that decide what it loads.

    Raises UnknownIdentity where there is none, or it is too large, and OSError.
    """
    led: list[FileId] = []
    root = Path(os.path.expanduser(path))
    if not root.is_dir():
        root, ref = _in_hub_cache(path)
        led.append(FileId.of(ref))
    root = Path(os.path.abspath(root))
    with os.scandir(root) as entries:
        names = sorted(e.name for e in entries if e.name == _CONFIG or os.path.splitext(e.name)[1] in _WEIGHT_SUFFIXES)
    if _CONFIG not in names or len(names) < 2:
        raise UnknownIdentity(f"{root} holds no {_CONFIG}, or no weights")
    if len(names) > _MAX_FILES:
        raise UnknownIdentity(f"{root} has more than {_MAX_FILES} files")
    files = [FileId.of(root / name) for name in names]
    if sum(f.size for f in files) > _MAX_BYTES:
        raise UnknownIdentity(f"the files in {root} have more than {_MAX_BYTES >> 30} GiB")
    return root, (*led, *files)


def _find_settled(path: str) -> tuple[Path, tuple[FileId, ...]]:
    """Find an adapter whose files, if they change after this, have another time of change. Raises as find does.

    A file that was written in this tick of the clock can be written once more without a trace.
    """
    for _ in range(2):
        found = find(path)
        now = time.time_ns()
        if not any(0 <= now - max(f.ctime_ns, f.link_ns) < _TICK_S * 1e9 for f in found[1]):
            return found
        time.sleep(_TICK_S)
    raise UnknownIdentity(f"the files in {found[0]} are being written")


def _in_hub_cache(path: str) -> tuple[Path, Path]:
    """Return the local snapshot of a repository of the hub, and the file that names its commit."""
    if not _HUB_ID.fullmatch(path) or os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        raise UnknownIdentity(f"there is no local directory {path}")
    home = Path(os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub")
    repository = cache / ("models--" + path.replace("/", "--"))
    ref = repository / "refs" / "main"
    try:
        commit = ref.read_text().strip()
    except (OSError, UnicodeDecodeError) as err:
        message = f"{path} is neither a local directory nor was it in the hub's local cache when it was first used"
        raise UnknownIdentity(message) from err
    snapshot = repository / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not snapshot.is_dir():
        raise UnknownIdentity(f"the hub's local cache does not have {path} as a whole")
    return snapshot, ref


def content(files: Sequence[FileId], variant: str) -> str:
    """Return the digest of an adapter's content, whatever it is called and wherever it lies.

    Raises OSError, and UnknownIdentity where a file has changed.
    """
    digests = [(os.path.basename(f.path), hash_file(f)) for f in files if _belongs(f)]
    return combined([*digests, ("", variant)], "adapter")


def _belongs(file: FileId) -> bool:
    name = os.path.basename(file.path)
    return name == _CONFIG or os.path.splitext(name)[1] in _WEIGHT_SUFFIXES
