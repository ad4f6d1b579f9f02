"""The `nbxtensor` command."""

from nbxtensor.cli.command import main

__all__ = ["main"]
