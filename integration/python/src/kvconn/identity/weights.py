"""What a model's weights are, by their content."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvconn.identity.files import Digests, FileId, UnknownIdentity, combined, first_changed_since

_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
# Configurations and code. What belongs to the tokenizer changes no KV of given tokens.
_OTHER_SUFFIXES = {".json", ".py"}
_TOKENIZER = re.compile(
    r"(tokenizer|special_tokens|added_tokens|vocab|merges|generation_config|chat_template|tekken).*", re.IGNORECASE
)
# Copies in other forms, which vLLM does not load, and what tools leave there.
_SKIPPED = re.compile(r"\..*|original|onnx|openvino|coreml|tflite|metal|np|runs|checkpoint-\d+|global_step\d+")
_PART = re.compile(r"(.*)-\d{5}-of-\d{5}")
_MAX_FILES = 20_000
_MAX_DEPTH = 4
_COMMIT = re.compile(r"[0-9a-f]{40}")

FILE_FORMATS = frozenset(
    {"auto", "hf", "safetensors", "pt", "mistral", "fastsafetensors", "instanttensor", "sharded_state"}
    | {"runai_streamer", "gguf", "bitsandbytes"}
)
"""Load formats that take all weights from the model's files."""


@dataclass(frozen=True)
class Weights:
    """Where the weights of a model, or of a draft model, come from: a commit of the hub, or files."""

    commit: str = ""
    root: Path | None = None
    files: tuple[FileId, ...] = ()

    def revision(self, digests: Digests) -> str:
        """Return what tells the weights apart from all others. Reads the files, unless their digests are known.

        Raises UnknownIdentity where files change meanwhile, or cannot be read.
        """
        if self.root is None:
            return self.commit
        try:
            known = digests.of(self.files)
        except OSError as err:
            raise UnknownIdentity(f"the weights cannot be read: {err}") from err
        names = [(os.path.relpath(f.path, self.root), known[f.path]) for f in self.files]
        return f"sha256:{combined(names, 'weights')}"


def weights_of(model_config: Any, load_config: Any, loading_since: float) -> Weights:
    """Return where a model's weights come from.

    `loading_since` is a point in time, in seconds since the epoch, before the engine began to load
    them. Raises UnknownIdentity where nothing tells what the engine has loaded: KV of other
    weights would be taken for that of these.
    """
    load_format = str(getattr(load_config.load_format, "value", load_config.load_format))
    if source := getattr(model_config, "model_weights", ""):
        raise UnknownIdentity(f"the weights are loaded from {source}, which is no local directory")
    _check_code(model_config)
    if load_format == "dummy":
        if getattr(model_config, "quantization", None):
            raise UnknownIdentity("quantized dummy weights are whatever was in memory")
        return Weights(commit="dummy")  # the same at every start, and made from the configuration alone
    if load_format not in FILE_FORMATS:
        raise UnknownIdentity(f"load format {load_format!r} does not say which weights it loads")
    path = Path(os.path.abspath(os.path.expanduser(str(model_config.model))))
    if path.is_dir():
        return _checked(path, tuple(_files(path)), loading_since)
    if path.is_file():
        return _checked(path.parent, tuple(_parts(path)), loading_since)
    return Weights(commit=_commit(model_config))


def _checked(root: Path, files: tuple[FileId, ...], loading_since: float) -> Weights:
    """Make sure that what is on disk now is what the engine has loaded."""
    if not any(Path(f.path).suffix in _WEIGHT_SUFFIXES for f in files):
        raise UnknownIdentity(f"there are no weights in {root}")
    try:
        changed = first_changed_since(root, files, loading_since)
    except OSError as err:
        raise UnknownIdentity(f"the weights cannot be read: {err}") from err
    if changed:
        raise UnknownIdentity(
            f"{changed} has changed since the engine was started, which may have loaded what was there before"
            " (restart the engine)"
        )
    return Weights(root=root, files=files)


def _files(root: Path) -> Iterator[FileId]:
    """Return the files of a model's directory that can change KV, in a fixed order. Raises UnknownIdentity."""
    count = 0
    for directory, below, names in os.walk(root, followlinks=True, onerror=_unreadable):
        depth = len(Path(directory).relative_to(root).parts)
        below[:] = sorted(d for d in below if not _SKIPPED.fullmatch(d)) if depth < _MAX_DEPTH else []
        for name in sorted(names):
            suffix = os.path.splitext(name)[1]
            other = suffix in _OTHER_SUFFIXES and not _TOKENIZER.fullmatch(name)
            if name.startswith(".") or not (suffix in _WEIGHT_SUFFIXES or other):
                continue
            count += 1
            if count > _MAX_FILES:
                raise UnknownIdentity(f"{root} has more than {_MAX_FILES} files, which are not all a model's")
            try:
                yield FileId.of(os.path.join(directory, name))
            except OSError as err:
                raise UnknownIdentity(f"the weights cannot be read: {err}") from err


def _parts(path: Path) -> Iterator[FileId]:
    """Return a file that is a model, with its other parts and with the encoder that vLLM finds beside it."""
    part = _PART.fullmatch(path.stem)
    try:
        for beside in sorted(path.parent.iterdir()):
            other = _PART.fullmatch(beside.stem)
            belongs = part is not None and other is not None and other[1] == part[1] and beside.suffix == path.suffix
            if beside == path or belongs or beside.name.startswith("mmproj"):
                yield FileId.of(beside)
    except OSError as err:
        raise UnknownIdentity(f"the weights cannot be read: {err}") from err


def _unreadable(err: OSError) -> None:
    raise UnknownIdentity(f"the weights cannot be read: {err}") from err


def _commit(model_config: Any) -> str:
    """Return the hub's commit of a model that is no local path. A branch or a tag moves, and tells nothing."""
    revision = str(model_config.revision or "")
    if _COMMIT.fullmatch(revision):
        return revision
    elsewhere = getattr(model_config, "hf_config_path", None)
    if not elsewhere or elsewhere == model_config.model:  # else it is the commit of another repository
        commit = str(getattr(model_config.hf_config, "_commit_hash", None) or "")
        if _COMMIT.fullmatch(commit):
            return commit
    asked = f"revision {revision!r} is no commit" if revision else "there is no revision"
    raise UnknownIdentity(
        f"no telling which weights {model_config.model!r} are: {asked}"
        " (pass the hash of a commit as --revision, or a local directory)"
    )


def _check_code(model_config: Any) -> None:
    """Refuse code of other repositories, which computes KV too, unless it is of one commit."""
    if not getattr(model_config, "trust_remote_code", False):
        return
    code = getattr(model_config.hf_config, "auto_map", None) or {}
    elsewhere = [str(v) for v in code.values() if "--" in str(v)] if isinstance(code, dict) else []
    if elsewhere and not _COMMIT.fullmatch(str(model_config.code_revision or "")):
        raise UnknownIdentity(
            f"the model's code comes from another repository ({elsewhere[0]}):"
            " pass the hash of a commit as --code-revision"
        )
