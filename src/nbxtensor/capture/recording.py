"""A run as one object that repeats it: recorded, verified byte-equal, replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from nbxtensor.errors import ArgumentError, CaptureError
from nbxtensor.op import Array
from nbxtensor.ops.launch_observer import launch_observer
from nbxtensor.shape import integer
from nbxtensor.tensor import Tensor

if TYPE_CHECKING:
    from nbxtensor.capture.program import Program

__all__ = ["Recording"]


class Recording:
    """A verified recording of a program: call it like the program.

    A replay copies the inputs into their fixed buffers, runs all launches by one native call, and allocates nothing
    but the copies of the outputs (nothing at all with ``borrow=True``).

    Attributes:
        program: What was recorded.
        verified: True: a recording that does not repeat a normal run byte for byte is never handed out.
    """

    def __init__(self, program: Program, inputs: tuple[Any, ...]) -> None:
        if not program.launches:
            raise CaptureError(f"{program.name}: a run with at least one launch. Got none.")
        if launch_observer().active():
            raise CaptureError(f"{program.name}: a dry run cannot be recorded. An observer is active.")
        self.program = program
        device = program.device
        self._replay = device.backend.record(program.launches, device.index, program.dependencies())
        self.verified: bool = self._verify(inputs)

    def __call__(self, *inputs: Any, borrow: bool = False) -> Any:
        """Replay once with ``inputs``; see `Program.__call__`."""
        with self.program.turn:
            self.program.fill(inputs)
            self._replay.run()
            return self.program.results(borrow=borrow)

    def __reduce__(self) -> NoReturn:
        """Refuse, as `Program` does, and for the same reason."""
        return self.program.__reduce__()

    def __len__(self) -> int:
        """Return the number of recorded launches."""
        return len(self.program.launches)

    def replay(self, times: int = 1) -> None:
        """Replay on what the input buffers and the state hold; return when all is done.

        An interrupt (Ctrl-C) ends it between two replays: the state is that after the last one started.

        Args:
            times: Replays, one after another without the host between them: steps of a program with state.

        Raises:
            ArgumentError: ``times`` is no whole number of 1 or more.
        """
        try:
            count = integer(times)
        except TypeError:
            count = 0
        if count < 1:
            raise ArgumentError(f"{self.program.name}: a number of replays, 1 or more. Got {times!r}.")
        with self.program.turn:
            for _ in range(count - 1):
                self._replay.start()
            self._replay.run()

    def profile(self) -> tuple[float, ...]:
        """Replay once, timed; return the nanoseconds of each launch, in the order of ``program.launches``.

        Raises:
            CaptureError: The backend's recordings cannot time themselves.
        """
        timed = getattr(self._replay, "profile", None)
        if timed is None:
            raise CaptureError(f"profile: recordings of {self.program.device} cannot be timed launch by launch.")
        return tuple(timed())

    def _verify(self, inputs: tuple[Any, ...]) -> bool:
        """Compare a replay with a normal run: on the same inputs, from the same state, in an overwritten arena."""
        program = self.program
        with program.turn:
            before = program.state.save()
            try:
                wanted = self._ran(program, inputs)
                program.state.restore(before)
                got = self._ran(self, inputs)
            finally:
                program.state.restore(before)
        for words, want in wanted.items():
            different = np.flatnonzero(want != got[words])
            if different.size:
                raise CaptureError(
                    f"{program.name}: a replay repeats the run byte for byte. {words} differs in "
                    f"{different.size} of {want.size} bytes, first at byte {different[0]}."
                )
        return True

    def _ran(self, call: Program | Recording, inputs: tuple[Any, ...]) -> dict[str, Array]:
        """Return the bytes that ``call`` returns and leaves in the state."""
        self.program.scrub()
        results = call(*inputs)
        tensors: tuple[Tensor, ...] = results if isinstance(results, tuple) else (results,)
        found = {f"Output {number}": _bytes(tensor) for number, tensor in enumerate(tensors)}
        return found | {f"State {name}": value for name, value in self.program.state.save().items()}


def _bytes(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
