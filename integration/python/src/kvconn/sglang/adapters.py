"""LoRA adapters that SGLang loads at start, told apart by what they contain.

SGLang's page hash has an adapter's id. For `--lora-paths` that is made from name and path, and stays the same
when the files change. An adapter that is loaded later, or again, gets a random id, which no other engine has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvconn.identity.files import Digests, FileId, UnknownIdentity, combined, first_changed_since

_CONFIG = "adapter_config.json"
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt"}
_SUFFIXES = _WEIGHT_SUFFIXES | {".json"}
_MAX_FILES = 64
_SETTINGS = ("lora_target_modules", "lora_backend", "experts_shared_outer_loras", "lora_use_virtual_experts")
"""Settings that change what an adapter does, or may."""


@dataclass(frozen=True)
class _Adapter:
    name: str
    path: str
    root: Path
    files: tuple[FileId, ...]


class Adapters:
    """The adapters of `--lora-paths`, and the settings that they are used with."""

    def __init__(self, adapters: Sequence[_Adapter], settings: str) -> None:
        self._adapters, self._settings = tuple(adapters), settings

    def revision(self, digests: Digests) -> str:
        """Return what tells these adapters apart from all others. Reads the files, unless their digests are known.

        Raises UnknownIdentity where files change meanwhile, or cannot be read.
        """
        try:
            known = digests.of([f for a in self._adapters for f in a.files])
        except OSError as err:
            raise UnknownIdentity(f"the LoRA adapters cannot be read: {err}") from err
        each = [(json.dumps([a.name, a.path]), _content(a, known)) for a in self._adapters]
        return "sha256:" + combined([*each, ("settings", self._settings)], "adapters")


def _content(adapter: _Adapter, known: dict[str, str]) -> str:
    return combined([(Path(f.path).name, known[f.path]) for f in adapter.files], "adapter")


def adapters_of(args: Any, loading_since: float) -> Adapters | None:
    """Return the adapters that the engine has loaded at start, None where there are none.

    `loading_since` is a point in time, in seconds since the epoch, before the engine began to load them. Raises
    UnknownIdentity where nothing tells what the engine has loaded.
    """
    refs = getattr(args, "lora_paths", None)
    if not refs:
        return None
    settings = {name: getattr(args, name, None) for name in _SETTINGS}
    text = json.dumps(settings, sort_keys=True, default=_set)
    return Adapters([_adapter(ref, loading_since) for ref in refs], text)


def _set(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise UnknownIdentity(f"a setting of LoRA is a {type(value).__name__}, which nothing tells apart from another")


def _adapter(ref: Any, loading_since: float) -> _Adapter:
    name, path = getattr(ref, "lora_name", None), getattr(ref, "lora_path", None)
    if not isinstance(name, str) or not isinstance(path, str):
        raise UnknownIdentity("lora_paths has an adapter without a name or a path")
    root = Path(os.path.abspath(path))
    if not root.is_dir():
        raise UnknownIdentity(f"LoRA adapter {name!r}: {path} is no local directory, and the hub's may change")
    try:
        files = _files(name, root)
        changed = first_changed_since(root, files, loading_since)
    except OSError as err:
        raise UnknownIdentity(f"LoRA adapter {name!r} cannot be read: {err}") from err
    if changed:
        raise UnknownIdentity(
            f"LoRA adapter {name!r}: {changed} has changed since the engine was started, which may have loaded what"
            " was there before (restart the engine)"
        )
    return _Adapter(name, path, root, files)


def _files(name: str, root: Path) -> tuple[FileId, ...]:
    """Return the files that SGLang may read of an adapter: all beside its configuration. Raises OSError."""
    names = sorted(n for n in os.listdir(root) if os.path.splitext(n)[1] in _SUFFIXES)
    if _CONFIG not in names or not any(os.path.splitext(n)[1] in _WEIGHT_SUFFIXES for n in names):
        raise UnknownIdentity(f"LoRA adapter {name!r}: {root} holds no {_CONFIG}, or no weights")
    if len(names) > _MAX_FILES:
        raise UnknownIdentity(f"LoRA adapter {name!r}: {root} has more than {_MAX_FILES} files")
    return tuple(FileId.of(root / n) for n in names)
