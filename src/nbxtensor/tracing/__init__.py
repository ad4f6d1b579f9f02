"""From a Python function to a graph, and the passes that know ops: fusion and packing."""

from nbxtensor.tracing.fusion import fuse
from nbxtensor.tracing.packing import pack
from nbxtensor.tracing.trace import trace

__all__ = ["fuse", "pack", "trace"]
