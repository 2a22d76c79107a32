"""SHA-256 over the contents of a dump's files: what a golden file is bound to."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from rollout_audit.dumps.discovery import open_binary
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from rollout_audit.dumps.discovery import DumpFile
    from rollout_audit.dumps.dump import Dump

__all__ = ["with_content_digests"]


def with_content_digests(dump: Dump) -> Dump:
    """The same dump, each file's digest taken over all of its bytes instead of size and footer.

    Raises:
        UnreadableFileError: a file can no longer be read.
    """
    infos = tuple(replace(info, digest=_content_digest(info.file)) for info in dump.infos)
    return replace(dump, infos=infos)


def _content_digest(file: DumpFile) -> str:
    try:
        with open_binary(file.path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError as error:
        raise UnreadableFileError(f"{file.name}: cannot be read ({error.strerror or error})") from error
