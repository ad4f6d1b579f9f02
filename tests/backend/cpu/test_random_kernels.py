"""Kernels drawn at random against the same statements done in order by numpy: laziness must not show."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backend.cpu.random_kernels import BUFFERS, LENGTH, drawn
from tests.backend.cpu.triton_launch import LEVELS, Kernel


def check(seed, length, level, numbers=(0, 5, 40)):
    text, run = drawn(seed, length)
    kernel = Kernel(text, level)
    rng = np.random.default_rng(seed)
    for n in numbers:
        buffers = [rng.integers(-50, 50, LENGTH).astype(np.int32) for _ in range(BUFFERS)]
        got = kernel.launch(*buffers, n)
        run(n, buffers)
        for k, (have, want) in enumerate(zip(got, buffers, strict=True)):
            np.testing.assert_array_equal(have, want, err_msg=f"seed {seed}, length {length}, n {n}, buffer {k}")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from(LEVELS))
def test_random_kernels(seed, length, level):
    check(seed, length, level)
