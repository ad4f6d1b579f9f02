"""Polynomials of least greatest error, rounded to float32 or float64 one coefficient at a time (needs mpmath)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from mpmath import cos, lu_solve, matrix, mp, mpf, pi

__all__ = ["fit", "remez", "rounded"]

mp.dps = 50
Function = Callable[[mpf], mpf]


def rounded(value: mpf, format: str) -> tuple[float, float]:
    """Return the two numbers of struct format "f" (float32) or "d" (float64) round ``value``, the nearer first."""
    (near,) = struct.unpack(format, struct.pack(format, float(value)))
    integer = {"f": "i", "d": "q"}[format]
    (bits,) = struct.unpack(integer, struct.pack(format, near))
    outward = (mpf(near) > value) == (near < 0)  # a step of the bits goes away from zero
    (other,) = struct.unpack(format, struct.pack(integer, bits + (1 if outward else -1)))
    return near, other


def remez(
    f: Function, weight: Function, low: mpf, high: mpf, powers: Sequence[int], rounds: int = 12, samples: int = 400
) -> tuple[list[mpf], mpf]:
    """Return coefficients of x**powers that minimise max |weight (f - p)| on [low, high], and that maximum.

    Everything is divided by x**min(powers) first: where all powers vanish at 0, errors alternate only then.
    """
    count, least = len(powers) + 1, min(powers)

    def chebyshev(number: int) -> list[mpf]:
        points = [(low + high) / 2 - (high - low) / 2 * cos(pi * k / (number - 1)) for k in range(number)]
        return [x if abs(x) > high / 1000 else high / 50 for x in points]

    nodes, grid = chebyshev(count), chebyshev(samples)
    values = [(f(x) / x**least, weight(x) * abs(x) ** least) for x in grid]
    best, least_error = [mpf(0)] * len(powers), mpf("inf")
    for _ in range(rounds):
        system, right = matrix(count, count), matrix(count, 1)
        for i, x in enumerate(nodes):
            for j, power in enumerate(powers):
                system[i, j] = x ** (power - least)
            system[i, count - 1] = (-1) ** i / (weight(x) * abs(x) ** least)
            right[i] = f(x) / x**least
        solution = lu_solve(system, right)
        coefficients = [solution[j] for j in range(count - 1)]
        errors = [
            w * (y - sum(c * x ** (k - least) for c, k in zip(coefficients, powers, strict=True)))
            for x, (y, w) in zip(grid, values, strict=True)
        ]
        largest = max(abs(e) for e in errors)
        if largest < least_error:
            best, least_error = coefficients, largest
        peaks: list[int] = []  # one extremum per run of equal sign
        for i, e in enumerate(errors):
            if peaks and (e > 0) == (errors[peaks[-1]] > 0):
                if abs(e) > abs(errors[peaks[-1]]):
                    peaks[-1] = i
            else:
                peaks.append(i)
        while len(peaks) > count:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        if len(peaks) < count:
            break
        level = abs(solution[count - 1])
        nodes = [grid[i] for i in peaks]
        if largest < level * mpf("1.001"):
            break
    return best, least_error


def fit(
    f: Function,
    low: float,
    high: float,
    powers: Sequence[int],
    *,
    weight: Function | None = None,
    fixed: dict[int, float] | None = None,
    format: str = "f",
    beam: int = 4,
) -> tuple[dict[int, float], float]:
    """Return {power: coefficient} rounded to ``format``, from the lowest power on, refitting the rest, and the error.

    Args:
        f: Function to approximate, of mpmath numbers.
        low: Left end.
        high: Right end.
        powers: Powers of x that are free.
        weight: Weight of the error; the relative error of ``f`` when absent.
        fixed: Coefficients given beforehand.
        format: "f" or "d".
        beam: Roundings kept after each coefficient.
    """
    a, b = mpf(low), mpf(high)
    w = weight or (lambda x: 1 / abs(f(x)))

    def rest(chosen: dict[int, float]) -> Function:
        return lambda x: f(x) - sum((mpf(c) * x**k for k, c in chosen.items()), mpf(0))

    left = sorted(powers)
    kept = [(mpf(0), dict(fixed or {}), remez(rest(dict(fixed or {})), w, a, b, left)[0])]
    while left:
        power = left.pop(0)
        tried: list[tuple[mpf, dict[int, float], list[mpf]]] = []
        for _, chosen, free in kept:
            for value in rounded(free[0], format):
                candidate = {**chosen, power: value}
                if left:
                    following, error = remez(rest(candidate), w, a, b, left)
                else:
                    following = []
                    grid = [a + (b - a) * k / 997 for k in range(998)]
                    error = max(abs(w(x) * rest(candidate)(x)) for x in grid if x != 0)
                tried.append((error, candidate, following))
        tried.sort(key=lambda one: one[0])
        kept = tried[:beam]
    return kept[0][1], float(kept[0][0])
