"""Every error the library raises: one class per kind, carrying the values it names."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ArgumentError",
    "BoundsError",
    "CaptureError",
    "CompileError",
    "DriverError",
    "DtypeError",
    "ExchangeError",
    "FormatError",
    "MissingFactError",
    "NbxError",
    "OutOfMemoryError",
    "PlanError",
    "SettingError",
    "ShapeError",
    "UnknownDtypeError",
    "UnsupportedError",
]


class NbxError(Exception):
    """Base of every error of the library."""


class ArgumentError(NbxError, ValueError):
    """An argument outside what a function accepts (an axis, an index, a mode, a count)."""


class BoundsError(ArgumentError, IndexError):
    """An axis, an index or a range outside the dimensions it is taken of."""


class SettingError(NbxError, ValueError):
    """A setting given a value it does not accept."""


class ShapeError(NbxError, ValueError):
    """Shapes, strides or views that a rule refuses."""


class DtypeError(NbxError, TypeError):
    """Dtypes that an op, a conversion or a promotion refuses."""


class UnknownDtypeError(NbxError, ValueError):
    """A dtype name that the table does not carry.

    Attributes:
        name: The name that was asked for.
        known: The names the table carries.
    """

    def __init__(self, name: object, known: Iterable[str]) -> None:
        self.name = name
        self.known: tuple[str, ...] = tuple(known)
        super().__init__(f"unknown dtype {name!r}. The table (dtype/dtypes.yml) carries {', '.join(self.known)}.")


class MissingFactError(NbxError, LookupError):
    """A fact (a device number, a kernel, a capability) that no table holds.

    Attributes:
        fact: What was asked for.
        where: Where such a fact lives.
    """

    def __init__(self, fact: str, where: str) -> None:
        self.fact = fact
        self.where = where
        super().__init__(f"{fact} is not known. {where}")


class UnsupportedError(NbxError, NotImplementedError):
    """An op, dtype, layout or device that no declared kernel or capability covers."""


class OutOfMemoryError(NbxError, MemoryError):
    """A request that the device, or the limit set on it, cannot hold.

    Attributes:
        requested: Bytes asked for.
        live: Bytes in use by whoever refuses: the library on that device, or the blocks of a device's memory.
        pooled: Bytes of freed blocks that the library keeps for later requests; they would have been given up.
        limit: Bytes the device, or the limit in force, holds.
        free: Bytes that the device reports as free.
        total: Bytes that the device has.
        fits: A request that would have been served in place of this one: the largest, but for what a driver keeps.
    """

    def __init__(
        self,
        device: str,
        *,
        requested: int,
        live: int,
        limit: int,
        free: int,
        total: int,
        source: str,
        pooled: int = 0,
        granule: int = 1,
        most: int | None = None,
    ) -> None:
        """Name the numbers.

        Args:
            device: The device.
            requested: As the attribute.
            live: As the attribute.
            limit: As the attribute.
            free: As the attribute.
            total: As the attribute.
            source: Who holds ``limit`` bytes, in words.
            pooled: As the attribute.
            granule: What blocks are rounded up to, in bytes.
            most: Bytes that would have been served, where less than ``free`` and ``pooled`` for another reason.
        """
        self.requested = requested
        self.live = live
        self.pooled = pooled
        self.limit = limit
        self.free = free
        self.total = total
        room = min(limit - live, free + pooled if most is None else most)
        self.fits: int = max(room, 0) // granule * granule
        super().__init__(
            f"{device}: out of memory. Requested {requested} bytes with {live} live and {pooled} pooled, of {limit} "
            f"({source}); the device has {free} of {total} bytes free. {self.fits} bytes would have fitted."
        )


class DriverError(NbxError, RuntimeError):
    """A call that a device's driver refused, or work on the device that failed before it.

    Attributes:
        function: The driver's function.
        status: What it returned.
        name: The driver's name for that.
    """

    def __init__(self, backend: str, function: str, status: int, name: str, text: str) -> None:
        self.function = function
        self.status = status
        self.name = name
        super().__init__(f"{backend}: {function} failed. The driver reports {name}{text and f' ({text})'}.")


class ExchangeError(NbxError, BufferError):
    """Memory that cannot be shared with another library as it is."""


class PlanError(NbxError, ValueError):
    """A graph or a plan that breaks a rule of planning."""


class CompileError(NbxError, RuntimeError):
    """A kernel that cannot be compiled for a target; names the kernel, the target and the cause."""


class CaptureError(NbxError, RuntimeError):
    """A run that cannot be recorded, or a recording that does not repeat the run byte for byte."""


class FormatError(NbxError, ValueError):
    """A file or a byte string that does not follow its format."""
