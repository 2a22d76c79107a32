"""What `torch.save` wrote, opened without running anything that a pickle could ask for."""

from __future__ import annotations

import hashlib
import zipfile
from typing import IO, Any

from rollout_audit.dumps.discovery import GONE, PICKLE_ADVICE, DumpFile, open_binary, opens_by_path
from rollout_audit.errors import UnreadableFileError

__all__ = ["ForeignObjectsError", "load_tensors", "zip_footer"]


class ForeignObjectsError(UnreadableFileError):
    """The file holds objects of some program, which only that program should open."""


def load_tensors(file: DumpFile, path: str | None = None) -> Any:
    """The object of one `.pt` file: tensors, numbers, texts, lists and dictionaries.

    Local files are mapped into memory: what is not used of a tensor is not read. Files of torch before 1.6 are read
    whole.

    Raises:
        ForeignObjectsError: it holds other objects.
        UnreadableFileError: it is damaged.
    """
    import torch

    place = path or file.path
    local = opens_by_path(place) and not place.endswith(".safetensors")  # torch goes by that name
    try:
        if local:
            return torch.load(place, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(place))
        with open_binary(place) as stream:
            return torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged archive makes torch, zipfile or the unpickler raise
        raise _refusal(place, error) from error


def _refusal(place: str, error: Exception) -> UnreadableFileError:
    if isinstance(error, FileNotFoundError | UnreadableFileError):
        return UnreadableFileError(f"{place}: {GONE}")
    words = " ".join(str(error).split())
    if "weights_only" in words:
        named = words.partition("GLOBAL ")[2].split(" ")[0]
        return ForeignObjectsError(f"{place}: holds more than tensors{f' ({named})' if named else ''}; {PICKLE_ADVICE}")
    reason = words[:120] or type(error).__name__
    return UnreadableFileError(f"{place}: damaged .pt file, or still being written ({reason})")


def zip_footer(path: str) -> bytes:
    """Name, size and checksum of every member: what the directory at the end of the archive says of the contents.

    Of a file of torch before 1.6, which is no archive, a digest of its contents.
    """
    with open_binary(path) as stream:
        if zipfile.is_zipfile(stream):
            return _directory(stream)
        stream.seek(0)
        return hashlib.file_digest(stream, "sha256").digest()  # type: ignore[arg-type]


def _directory(stream: IO[bytes]) -> bytes:
    with zipfile.ZipFile(stream) as archive:
        return "\n".join(f"{i.filename} {i.file_size} {i.CRC:08x}" for i in archive.infolist()).encode()
