"""The folder of a bundle as it is written: whole or not at all, every file with its checksums."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from nbxtensor.capture.folder import CHUNK, FORMAT, MANIFEST, VERSION, Bytes, chunks, digest, library, mapped
from nbxtensor.errors import ArgumentError

__all__ = ["BundleWriter", "digests_of"]


class BundleWriter:
    """A folder that appears whole under its name, or not at all: a context whose `finish` was called.

    Attributes:
        folder: Where it will be.
    """

    def __init__(self, folder: Path) -> None:
        """Begin a folder beside its place.

        Raises:
            ArgumentError: There is something at its place.
            OSError: Its parent cannot be written.
        """
        self.folder = folder
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise _taken(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._writing = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-writing-"))
        self._files: dict[str, dict[str, Any]] = {}

    def add(self, name: str, pieces: Iterable[Bytes]) -> None:
        """Write one file, piece after piece."""
        digests, nbytes, hashed = [], 0, hashlib.sha256()
        with (self._writing / name).open("wb") as file:
            for piece in pieces:
                whole = memoryview(piece)
                while whole:
                    part = whole[: CHUNK - nbytes % CHUNK]
                    whole = whole[len(part) :]
                    file.write(part)
                    hashed.update(part)
                    nbytes += len(part)
                    if nbytes % CHUNK == 0:
                        digests.append(hashed.hexdigest())
                        hashed = hashlib.sha256()
        if nbytes % CHUNK or not nbytes:
            digests.append(hashed.hexdigest())
        self._files[name] = {"nbytes": nbytes, "sha256": digests}

    def add_json(self, name: str, content: Any) -> None:
        """Write one file of JSON."""
        self.add(name, [json.dumps(content, separators=(",", ":")).encode()])

    def finish(self, content: Mapping[str, Any]) -> None:
        """Write the manifest and give the folder its name.

        Raises:
            ArgumentError: Somebody else made the folder meanwhile.
            OSError: The disk fails.
        """
        body = {"files": self._files, **content}
        head = {"format": FORMAT, "version": VERSION, "library": library(), "sha256": digest(body)}
        (self._writing / MANIFEST).write_text(json.dumps({**head, "content": body}, indent=1), encoding="utf-8")
        self._writing.chmod(0o755)  # mkdtemp's is for the owner alone
        try:
            self._writing.replace(self.folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise _taken(self.folder) from None

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._writing, ignore_errors=True)  # there only where `finish` did not come to its end


def _taken(folder: Path) -> ArgumentError:
    return ArgumentError(f"save: a folder that is not there yet, or is empty. Got {folder}. Remove it first.")


def digests_of(path: Path) -> dict[str, Any]:
    """Return the size and the checksums of a file, as a bundle states them of what it refers to."""
    parts = chunks(mapped(path))
    return {"nbytes": sum(map(len, parts)), "sha256": [hashlib.sha256(part).hexdigest() for part in parts]}
