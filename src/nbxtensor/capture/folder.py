"""The folder of a bundle as it is read: every file checked against the manifest, beside other work."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from nbxtensor.errors import FormatError

# This module loads neither numpy nor a device: checksums are begun before those, and go on meanwhile.

__all__ = ["CHUNK", "FORMAT", "MANIFEST", "VERSION", "BundleFolder", "Bytes", "chunks", "digest", "library", "mapped"]

FORMAT = "nbxtensor.bundle"
"""What a manifest says it is."""
VERSION = 1
"""Version of the format."""
MANIFEST = "bundle.json"
"""File that names all others."""
CHUNK = 16 << 20
"""Bytes under one checksum: so many that threads seldom ask for the interpreter's lock."""
_MOST_THREADS = 8
Bytes = bytes | memoryview | mmap.mmap
"""Bytes of a file."""


class BundleFolder:
    """A bundle being loaded: a context, at whose end no file is being checked any more.

    Attributes:
        folder: Where it is.
        content: What the manifest says.
    """

    def __init__(self, folder: Path) -> None:
        """Read the manifest.

        Raises:
            FormatError: It is missing, damaged, or of another version.
        """
        self.folder = folder
        path = folder / MANIFEST
        try:
            given = json.loads(path.read_bytes())
        except OSError as error:
            raise FormatError(f"{path}: a bundle has a manifest. {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}: the manifest is JSON. {error}.") from None
        if not isinstance(given, dict) or given.get("format") != FORMAT:
            raise FormatError(f"{path}: the manifest of a bundle says {FORMAT!r} as its format.")
        for field, known in (("version", VERSION), ("library", library())):
            if given.get(field) != known:
                raise FormatError(
                    f"{path}: a bundle is loaded by what wrote it: {field} {known}. Got {given.get(field)!r}. Save "
                    "it anew."
                )
        if given.get("sha256") != digest(given.get("content")):
            raise FormatError(f"{path}: the manifest does not have the SHA-256 that it states: it is damaged.")
        content = given.get("content")
        files = content.get("files", {}) if isinstance(content, dict) else None
        if not isinstance(content, dict) or not isinstance(files, dict):
            raise FormatError(f"{path}: the manifest has a mapping of its files. Got {type(files).__name__}.")
        self.content: dict[str, Any] = content
        self._files: dict[str, dict[str, Any]] = files
        if not all(isinstance(x, dict) and {"nbytes", "sha256"} <= x.keys() for x in self._files.values()):
            raise FormatError(f"{path}: the manifest states the size and the SHA-256 of every file.")
        self._maps: dict[str, Bytes] = {}
        self._jobs: list[tuple[Path, Bytes, str]] = []
        self._wrong: list[str] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to check every file.

        Raises:
            FormatError: A file is missing, or of another size.
        """
        for name in self._files:
            path = self.file(name)
            if self._size(path) != self._files[name]["nbytes"]:
                raise FormatError(f"{path}: a file has the size that the manifest states: it is damaged.")
            self._maps[name] = mapped(path)
            self._check(path, self._maps[name], self._files[name]["sha256"])
        self._run()

    def file(self, name: str) -> Path:
        """Return the path of a file.

        Raises:
            FormatError: The manifest has no such file, or its name leaves the folder.
        """
        if name not in self._files or Path(name).name != name:
            raise FormatError(f"{self.folder}: a file of the bundle. Got {name!r}. {', '.join(self._files)} are.")
        return self.folder / name

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, checked.

        Raises:
            FormatError: The file is missing or damaged.
        """
        path = self.file(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise FormatError(f"{path}: a file of the bundle is missing. {error.strerror}.") from None
        if not _right(data, self._files[name]["sha256"]):
            raise _damaged(path)
        return data

    def whole(self, name: str) -> Bytes:
        """Return a file as memory that the system reads when it is touched; `check` says whether it is right."""
        self.file(name)
        return self._maps[name]

    def check_outside(self, path: Path, nbytes: int, digests: Sequence[str]) -> Bytes:
        """Begin to check a file that the bundle refers to, and return it, mapped.

        Raises:
            FormatError: It is missing, or of another size.
        """
        if self._size(path) != nbytes:
            raise FormatError(f"{path}: a file that a bundle refers to is what it was: it is of another size.")
        data = mapped(path)
        self._check(path, data, digests)
        self._run()
        return data

    def _size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError as error:
            raise FormatError(f"{path}: a file of the bundle is missing. {error.strerror}.") from None

    def _check(self, path: Path, data: Bytes, digests: Sequence[str]) -> None:
        parts = chunks(data)
        if len(parts) != len(digests):
            raise _damaged(path)
        self._jobs += [(path, part, digest) for part, digest in zip(parts, digests, strict=True)]

    def _run(self) -> None:
        for _ in range(min(len(self._jobs), _MOST_THREADS, max(1, (os.cpu_count() or 1) - 1))):
            thread = threading.Thread(target=self._work, name="nbxtensor-checksums", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while self._jobs:
            try:
                path, part, digest = self._jobs.pop()
            except IndexError:  # another thread has it
                return
            if not _right(part, [digest]):
                self._wrong.append(str(path))

    def __enter__(self) -> BundleFolder:
        return self

    def check(self) -> None:
        """Wait until every file begun with is checked.

        Raises:
            FormatError: One is damaged; names the first.
        """
        self._work()
        for thread in self._threads:
            thread.join()
        if self._wrong:
            raise _damaged(Path(self._wrong[0]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs.clear()  # nobody waits for these where an error ended it
        for thread in self._threads:
            thread.join()
        self._maps.clear()


def chunks(data: Bytes) -> list[memoryview]:
    """Return the parts of a file that have a checksum each; one, of no bytes, where it is empty."""
    view = memoryview(data)
    return [view[start : start + CHUNK] for start in range(0, max(len(view), 1), CHUNK)]


def mapped(path: Path) -> Bytes:
    """Return a file as memory that the system reads when it is touched."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _right(data: Bytes, digests: Sequence[str]) -> bool:
    return [hashlib.sha256(part).hexdigest() for part in chunks(data)] == list(digests)


def _damaged(path: Path) -> FormatError:
    return FormatError(f"{path}: the file does not have the SHA-256 that the bundle states: it is damaged.")


def digest(body: object) -> str:
    """Return the checksum of what a manifest says."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def library() -> str:
    """Return the version of the library."""
    from nbxtensor import __version__

    return __version__
