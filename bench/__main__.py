"""`python -m bench`: measure everything, or the groups named, and keep the figures."""

from __future__ import annotations

import argparse
import sys

from bench import machine

GROUPS = ("ops", "minilm", "launch", "start", "compile")


def main() -> None:
    """Measure."""
    if sys.argv[1:3] == ["--device", "cuda"]:
        from bench.gpu.command import main as on_a_card

        sys.exit(on_a_card(sys.argv[3:]))
    if sys.argv[1:2] == ["plan"]:
        from bench.plan import main as of_lifetimes

        sys.exit(of_lifetimes(sys.argv[2:]))
    machine.start_anew()
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Us and the best peers, in one run; --device cuda, given first: on a GPU."
    )
    parser.add_argument("groups", nargs="*", help=f"which of {', '.join(GROUPS)}; none named: all")
    parser.add_argument("--only", default="", help="only ops whose name contains this")
    parser.add_argument("--threads", type=int, nargs="+", help="numbers of threads; left out: 1, then every core to 2")
    parser.add_argument("--turns", type=int, default=25, help="most turns of each contender")
    parser.add_argument("--seconds", type=float, default=4.0, help="about what one case may take (a model: 8 x)")
    parser.add_argument("--precedence", action="store_true", help="run before other processes, where permitted")
    parser.add_argument("--no-write", action="store_true", help="show the figures only")
    asked = parser.parse_args()
    unknown = sorted(set(asked.groups) - set(GROUPS))
    if unknown:
        parser.error(f"no such group: {', '.join(unknown)}. There are {', '.join(GROUPS)}.")

    if asked.precedence and not machine.take_precedence():
        parser.error("--precedence: not permitted here.")

    from bench import compile as compiling
    from bench import launch, minilm, ops, start
    from bench.lines import Lines

    about = machine.about()
    counts = asked.threads or range(1, min(2, about["cores"]) + 1)
    print(f"{about['device']}, {about['cores']} cores, {about['level']}, load {machine.load()}")
    print(", ".join(f"{name} {version}" for name, version in about["versions"].items()), about["commit"])
    print("malloc keeps what is freed" if machine.keep_memory() else "malloc gives back what is freed")
    lines = Lines(keep=not asked.no_write)
    groups = asked.groups or GROUPS
    for count in counts:  # before any peer has threads of its own
        for name, unit in _RATES.items():
            lines.add("machine", name, unit=unit, ours=machine.rates(count)[name] / 1e9, threads=count)
    for count in counts:
        if "ops" in groups:
            ops.run(lines, count, only=asked.only, turns=asked.turns, seconds_each=asked.seconds)
        if "minilm" in groups:
            minilm.run(lines, count, turns=asked.turns, seconds_each=8 * asked.seconds)
    if "launch" in groups:
        launch.run(lines)
    if "start" in groups:
        start.run(lines)
    if "compile" in groups:
        compiling.run(lines)
    if lines.impossible:
        sys.exit("Faster than this machine was measured to be, so declared wrongly:\n" + "\n".join(lines.impossible))


_RATES = {
    "compute.matrix_flops.float32": "GFLOP/s",
    "compute.matrix_flops.bfloat16": "GFLOP/s",
    "compute.matrix_flops.int8": "GOP/s",
    "memory.read_bandwidth": "GB/s",
    "memory.copy_bandwidth": "GB/s",
}


if __name__ == "__main__":
    main()
