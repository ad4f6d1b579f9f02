"""What a caller of the command got wrong, told in one line with exit status 2."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

from nbxtensor.errors import ArgumentError

__all__ = ["Parser", "UsageError", "check_readable", "check_writable"]


class UsageError(ArgumentError):
    """A word of the command line that names nothing: a file, an option, a device."""


class Parser(argparse.ArgumentParser):
    """A parser that tells what it refuses in one line; its subcommands' parsers are of the same class."""

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 and one line."""
        self.exit(2, f"nbxtensor: {message}. {self.prog} --help has the words.\n")


def check_readable(word: str, path: Path, hint: str = "") -> None:
    """Check that a file can be read.

    Args:
        word: The word of the command line that names it.
        path: The file.
        hint: What else a caller may want to know.

    Raises:
        UsageError: There is none, it is a folder, or it cannot be read.
    """
    if path.exists() and not path.is_dir() and os.access(path, os.R_OK):
        return
    why = "a folder" if path.is_dir() else "cannot be read" if path.exists() else "no such file"
    raise UsageError(f"{word}: {path}: {why}. {hint or 'A file that can be read.'}")


def check_writable(word: str, path: Path | None) -> None:
    """Check that a file can be written before the work for it is done; None: no file is asked for.

    Args:
        word: The word of the command line that names it.
        path: The file.

    Raises:
        UsageError: It is a folder, cannot be written, or its folder is not there.
    """
    if path is None:
        return
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{word}: a file that can be written, in a folder that is there. Got {path}.")
