"""Compiled kernels kept on disk: one checked file each, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
from pathlib import Path

from nbxtensor.backend.contract import Compiled
from nbxtensor.settings import cache_directory

__all__ = ["KernelCache"]

_MAGIC = b"nbxtensor kernel 1\n"
_HEAD = struct.Struct("<32sI")  # SHA-256 of what follows, bytes of the JSON head


class KernelCache:
    """The directory ``kernels`` in the library's cache directory.

    Processes may share it: a file appears under its name complete, by a rename. A file that is damaged is as good as
    absent. Where the directory cannot be written, kernels are compiled anew in every process, and a warning says so.
    """

    def __init__(self) -> None:
        self._warned = False

    def read(self, key: str) -> Compiled | None:
        """Return the kernel kept under ``key``; None when there is none, or it is damaged."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        return _parse(data)

    def write(self, key: str, compiled: Compiled) -> None:
        """Keep a kernel under ``key``.

        Warns:
            RuntimeWarning: Once, when the directory cannot be written.
        """
        head = json.dumps(
            {"name": compiled.name, "parameters": compiled.parameters, "metadata": dict(compiled.metadata)}
        ).encode()
        body = head + compiled.binary
        size = struct.pack("<I", len(head))
        data = b"".join((_MAGIC, hashlib.sha256(size + body).digest(), size, body))
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, data)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"compiled kernels are not kept: {error}. nbxtensor.settings.set_cache_directory takes another "
                    "directory.",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _path(self, key: str) -> Path:
        return cache_directory() / "kernels" / key[:2] / key[2:]


def _replace(path: Path, data: bytes) -> None:
    import tempfile  # only who compiles pays for it

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _parse(data: bytes) -> Compiled | None:
    start = len(_MAGIC)
    if len(data) < start + _HEAD.size or not data.startswith(_MAGIC):
        return None
    digest, size = _HEAD.unpack_from(data, start)
    if hashlib.sha256(data[start + 32 :]).digest() != digest:
        return None
    body = data[start + _HEAD.size :]
    head = json.loads(body[:size])
    parameters = tuple((name, kind) for name, kind in head["parameters"])
    return Compiled(head["name"], body[size:], parameters, head["metadata"])
