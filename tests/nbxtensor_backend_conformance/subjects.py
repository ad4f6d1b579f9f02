"""The backends under test: every installed one that has a device here."""

from dataclasses import dataclass

from nbxtensor.backend.contract import Backend
from nbxtensor.backend.registry import backend, installed
from nbxtensor.op import Target

NULL = Target("cuda", "sm_90", frozenset({"bfloat16", "float64"}))


@dataclass(frozen=True)
class Subject:
    """One device to test.

    Attributes:
        backend: Its backend.
        index: Its index.
        computes: Whether its memory holds what was put there and its launches are executed.
    """

    backend: Backend
    index: int
    computes: bool


def subjects():
    """One device of each installed backend, by the backend's name; those without a device are left out."""
    found = {}
    for name in installed():
        subject = backend(name)
        if name == "null":
            found[name] = Subject(subject, subject.add(NULL, 1 << 30), computes=False)
        elif subject.count():
            found[name] = Subject(subject, 0, computes=True)
    return found
