"""What a plan says that it takes of a GPU, beside what the driver says."""

import gc
import os
from dataclasses import dataclass

import pytest

from nbxtensor.planning.plan import Plan
from nbxtensor.run import Device

GRANULARITY = 2 << 20
"""Bytes in whose multiples the driver gives memory out."""


def device_alone():
    """Whether no other process of the tests is on the device: what it has free is then this one's doing."""
    return "PYTEST_XDIST_WORKER" not in os.environ


def alone(test):
    """Mark a test that looks at what the device has free."""
    skip = pytest.mark.skipif(not device_alone(), reason="needs the device to itself: run with -n0 -m alone")
    return pytest.mark.alone(skip(test))


@dataclass(frozen=True)
class Taken:
    """Bytes that went when a plan was loaded.

    Attributes:
        planned: What the plan says.
        rounded: The same, each area of it rounded up to the driver's granularity.
        areas: What went when the plan was loaded a second time: its memory alone.
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
    """Load a plan twice and run it once; return what that took."""
    memory = device.backend.memory(device.index)

    def free() -> int:
        gc.collect()
        device.allocator.trim()
        return memory.info().free

    areas = [plan.arena_nbytes, plan.weights_nbytes, plan.state_nbytes]
    before = free()
    program = plan.load(weights)
    once = free()
    second = plan.load(weights)
    twice = free()
    del second
    middle = free()
    program.run()
    device.backend.synchronize(device.index)
    return Taken(
        planned=sum(areas),
        rounded=sum(-(-n // GRANULARITY) * GRANULARITY for n in areas),
        areas=once - twice,
        code=before - once - (once - twice),
        first_run=middle - free(),
    )
