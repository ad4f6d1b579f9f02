"""What a plan says that it takes of a GPU, beside what the driver says."""

import gc
import os
from dataclasses import dataclass

from nbxtensor.planning.plan import Plan
from nbxtensor.run import Device

GRANULARITY = 2 << 20
"""Bytes in whose multiples the driver gives memory out."""


def device_alone():
    """Whether no other process of the tests is on the device: what it has free is then this one's doing."""
    return "PYTEST_XDIST_WORKER" not in os.environ


@dataclass(frozen=True)
class Taken:
    """Bytes that went when a plan was loaded.

    Attributes:
        planned: What the plan says.
        rounded: The same, each area of it rounded up to the driver's granularity.
        areas: What went when the plan was loaded once more: its memory alone.
        code: What went at the first time beyond that: the code of its kernels.
        first_run: What went at the first run.
    """

    planned: int
    rounded: int
    areas: int
    code: int
    first_run: int

    @property
    def unplanned(self) -> int:
        """Bytes by which the memory differs from the plan rounded up; areas below the granularity share one step."""
        return self.areas - self.rounded


def taken(plan: Plan, weights, device: Device) -> Taken:
    """Load a plan three times and run it once; return what that took.

    At the first load the driver places the code of the kernels, and it may take steps for small blocks that the later
    ones share: of these the one that takes less counts.
    """
    memory = device.backend.memory(device.index)

    def free() -> int:
        gc.collect()
        device.allocator.trim()
        return memory.info().free

    areas = [plan.arena_nbytes, plan.weights_nbytes, plan.state_nbytes]
    before = free()
    program = plan.load(weights)
    once = free()
    others, left = [], [once]
    for _ in range(2):
        others.append(plan.load(weights))
        left.append(free())
    del others
    middle = free()
    program.run()
    device.backend.synchronize(device.index)
    again = min(left[0] - left[1], left[1] - left[2])
    return Taken(
        planned=sum(areas),
        rounded=sum(-(-n // GRANULARITY) * GRANULARITY for n in areas),
        areas=again,
        code=before - once - again,
        first_run=middle - free(),
    )
