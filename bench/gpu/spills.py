"""What the kernels of every timed case take of the card: registers, and the local memory of those that spill."""

from __future__ import annotations

import nbxtensor as nbx
from bench import ours
from bench.gpu.card import Lines
from nbxtensor.errors import NbxError
from nbxtensor.run.binding import prepare


def run(lines: Lines) -> None:
    """Load the kernels of every case that is marked for timing, as a program would, and report those that spill."""
    device = nbx.device("cuda")
    spilling: dict[str, dict[str, int]] = {}
    refused: dict[str, str] = {}
    most = kernels = 0
    for timed in ours.timed_cases():
        made = timed.call
        call = timed.op.call(made.inputs, made.params, device.target)
        try:
            kernel = timed.op.kernel(call)
            launches = kernel.launch(call)
            ready = prepare(call, kernel, launches, device.backend, device.index, bake=True, aligned=lambda _: True)
        except NbxError as error:
            refused[timed.name] = f"{type(error).__name__}: {error}"
            continue
        for each in ready:
            taken = each.kernel.resources
            kernels, most = kernels + 1, max(most, taken.registers)
            if taken.local_nbytes:
                spilling[timed.name] = {"registers": taken.registers, "local_nbytes": taken.local_nbytes}
    lines.add(
        "spills", "kernels of the timed cases that spill", "kernels", len(spilling), kernels=kernels,
        most_registers=most, spilling=spilling, refused=refused, goal=0,
    )  # fmt: skip
