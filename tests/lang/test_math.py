"""Elementary functions for kernels: run on the CPU against numpy in more digits, compiled for GPUs without one."""

import itertools
import math

import numpy as np
import pytest
import triton
import triton.language as tl
from tests.backend.cpu.triton_launch import LEVELS, run

from nbxtensor.dtype.convert import convert
from nbxtensor.lang import math as lm

BLOCK = 1024


@triton.jit
def unary(x, y, n, F: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    inside = i < n
    tl.store(y + i, F(tl.load(x + i, mask=inside)), mask=inside)


@triton.jit
def binary(x, z, y, n, F: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    inside = i < n
    tl.store(y + i, F(tl.load(x + i, mask=inside), tl.load(z + i, mask=inside)), mask=inside)


def evaluate(name, *arrays, level=LEVELS[-1]):
    kernel = unary if len(arrays) == 1 else binary
    size = arrays[0].size
    grid = (-(-size // BLOCK),)
    return run(kernel, level, *arrays, np.zeros_like(arrays[0]), size, grid=grid, F=getattr(lm, name), B=BLOCK)[-1]


def lifted(function):
    return lambda x: np.fromiter(map(function, x.astype(np.float64).tolist()), np.float64, x.size).astype(x.dtype)


# Reference, and the error allowed: units in the last place of float32 and of float64.
FUNCTIONS = {
    "acos": (np.arccos, 1.2, 1.5), "acosh": (np.arccosh, 2.2, 3.0), "asin": (np.arcsin, 2.0, 2.3),
    "asinh": (np.arcsinh, 2.0, 3.0), "atan": (np.arctan, 1.6, 2.3), "atanh": (np.arctanh, 2.0, 2.5),
    "cosh": (np.cosh, 1.4, 1.6), "erfc": (lifted(math.erfc), 4.1, 5.0), "expm1": (np.expm1, 1.6, 2.0),
    "log10": (np.log10, 1.7, 1.8), "log1p": (np.log1p, 1.0, 1.5), "sinh": (np.sinh, 1.7, 1.7),
    "tanh": (np.tanh, 1.5, 1.6),
}  # fmt: skip
APPROXIMATE = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_erf": lambda x: 0.5 * x * (1 + lifted(math.erf)(x / np.sqrt(x.dtype.type(2)))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}  # fmt: skip
SPECIAL = np.array([0, 1, 2, 0.5, np.inf, 3, 4, 1e10, 1e30, 2.0**-126, 2.0**-149, 1.5, 0.75, 20, 1e-9])
SPECIAL = np.concatenate([SPECIAL, -SPECIAL, [np.nan]])


def sample(dtype):
    """Every sign and exponent, dense between -3 and 3, whole numbers, and special values."""
    random = np.random.default_rng(7)
    width = np.dtype(dtype).itemsize * 8
    parts = [
        random.integers(0, 1 << width, 60000, dtype=f"u{width // 8}").view(dtype),
        random.uniform(-3, 3, 60000),
        np.exp(random.uniform(-30, 7, 40000)) * random.choice([-1, 1], 40000),
        np.arange(-60.0, 60.0, 0.5),
        SPECIAL,
    ]
    with np.errstate(all="ignore"):
        return np.concatenate([part.astype(dtype) for part in parts])


def ulps(result, exact):
    """Distance in units in the last place of ``result``'s type; 0 where both are NaN or infinite alike."""
    limit = np.finfo(result.dtype)
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.where(np.isfinite(exact), exact, 1))[1] - 1
        exponent = np.clip(exponent, int(limit.minexp), int(limit.maxexp) - 1)
        top = np.ldexp(exact.dtype.type(1), int(limit.maxexp))
        error = np.abs(np.clip(result.astype(exact.dtype), -top, top) - np.clip(exact, -top, top))
        error = error / np.ldexp(exact.dtype.type(1), exponent - int(limit.nmant))
        return np.where(np.isnan(result) & np.isnan(exact), 0, np.where(np.isnan(error), np.inf, error))


def check(result, exact, bound, *operands):
    error = ulps(result, exact)
    worst = error.argmax()
    where = [float(o[worst]) for o in operands]
    assert error[worst] <= bound, (where, result[worst], exact[worst], float(error[worst]))
    number = ~np.isnan(exact)
    assert np.array_equal(np.signbit(result[number]), np.signbit(exact[number]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_its_bound(name, dtype):
    reference, *bounds = FUNCTIONS[name]
    x = sample(dtype)
    wide = np.float64 if dtype is np.float32 or name == "erfc" else np.longdouble
    with np.errstate(all="ignore"):
        exact = reference(x.astype(wide))
    check(evaluate(name, x), exact, bounds[dtype is np.float64], x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_level_gives_the_same_bits(name):
    x = sample(np.float32)[::11]
    results = [evaluate(name, x, level=level) for level in LEVELS]
    for other in results[1:]:
        nan = np.isnan(results[0])
        assert np.array_equal(nan, np.isnan(other))
        assert np.array_equal(results[0].view(np.uint32)[~nan], other.view(np.uint32)[~nan])


def operands(dtype):
    random = np.random.default_rng(9)
    grid = np.array(list(itertools.product(SPECIAL, SPECIAL)))
    bases = np.exp(random.uniform(-80, 80, 30000))
    top = 88 if dtype is np.float32 else 700
    powers = random.uniform(-top, top, bases.size) / np.log(bases)
    near = 1 + random.uniform(-1e-4, 1e-4, 20000)
    x = [grid[:, 0], bases, near, -np.round(bases), random.normal(size=20000)]
    y = [grid[:, 1], powers, random.uniform(-1e5, 1e5, near.size), random.integers(-9, 9, bases.size)]
    y.append(random.normal(size=20000))
    with np.errstate(all="ignore"):
        return np.concatenate(x).astype(dtype), np.concatenate(y).astype(dtype)


@pytest.mark.parametrize(
    ("name", "reference", "dtype", "bound"),
    [
        ("pow", np.power, np.float32, 1.0),
        ("pow", np.power, np.float64, 1.1),
        ("atan2", np.arctan2, np.float32, 2.0),
        ("atan2", np.arctan2, np.float64, 2.3),
    ],
)
def test_two_operands(name, reference, dtype, bound):
    x, y = operands(dtype)
    wide = np.float64 if dtype is np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        exact = reference(x.astype(wide), y.astype(wide))
    check(evaluate(name, x, y), exact, bound, x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", APPROXIMATE)
def test_activations(name, dtype):
    x = np.concatenate([np.linspace(-30, 30, 20011), [0.0, -0.0, 80, -80]]).astype(dtype)
    exact = APPROXIMATE[name](x.astype(np.longdouble if dtype is np.float64 else np.float64))
    eps = np.finfo(dtype).eps
    # What cancels in the tail of a gelu is small beside 1, not beside the result.
    relative = 0 if name in {"sigmoid", "silu"} else np.abs(x)
    assert (np.abs(evaluate(name, x) - exact) <= eps * (16 * np.abs(exact) + relative)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [*FUNCTIONS, *APPROXIMATE])
def test_every_half_argument(name, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(np.float16) if dtype == "float16" else np.dtype(ml_dtypes.bfloat16)
    patterns = np.arange(1 << 16, dtype=np.uint16)
    carrier = patterns.view(np.float16) if dtype == "float16" else patterns
    exact_argument = convert(carrier, dtype, "float64")
    reference = APPROXIMATE.get(name) or FUNCTIONS[name][0]
    with np.errstate(all="ignore"):
        exact = reference(exact_argument)
    result = evaluate(name, patterns.view(kind)).view(carrier.dtype)
    wide = convert(result, dtype, "float64")
    spacing = 2.0 ** (-10 if dtype == "float16" else -7)
    tiny = 2.0 ** (-24 if dtype == "float16" else -133)
    largest = 65504.0 if dtype == "float16" else 3.3895313892515355e38
    number = np.isfinite(exact) & (np.abs(exact) <= largest)
    if name in {"sigmoid", "silu"}:
        tiny = 2.0**-120 if dtype == "bfloat16" else tiny  # where e**-x overflows, so a subnormal result vanishes
    room = 0.51 * np.maximum(np.abs(exact[number]) * spacing, tiny)
    if name.startswith("gelu"):
        room = room + np.abs(exact_argument[number]) * 2.0**-23
    assert (np.abs(wide[number] - exact[number]) <= room).all()
    defined = np.abs(exact_argument) < np.inf if name in APPROXIMATE else slice(None)
    assert np.array_equal(np.isnan(wide)[defined], np.isnan(exact)[defined])


@triton.jit
def everything(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    u = tl.load(x + i)
    v = tl.load(x + i + B)
    total = lm.acos(u) + lm.acosh(u) + lm.asin(u) + lm.asinh(u) + lm.atan(u) + lm.atanh(u) + lm.atan2(u, v)
    total += lm.cosh(u) + lm.erfc(u) + lm.expm1(u) + lm.log10(u) + lm.log1p(u) + lm.sinh(u) + lm.tanh(u)
    total += lm.pow(u, v) + lm.sigmoid(u) + lm.silu(u) + lm.gelu_erf(u) + lm.gelu_tanh(u)
    tl.store(y + i, total)


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp64"])
@pytest.mark.parametrize("target", [("cuda", 70, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)], ids=str)
def test_compiles_without_a_device(target, dtype):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(everything, {"x": f"*{dtype}", "y": f"*{dtype}", "B": "constexpr"}, {(2,): 128})
    made = triton.compile(source, target=GPUTarget(*target), options={"enable_fp_fusion": False})
    assert made.asm["cubin" if target[0] == "cuda" else "hsaco"]


@triton.jit
def rounded_once(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    u = tl.load(x + i)
    v = tl.load(x + i + B)
    total = lm.acos(u) + lm.acosh(u) + lm.asin(u) + lm.asinh(u) + lm.atan(u) + lm.atanh(u) + lm.atan2(u, v)
    total += lm.cosh(u) + lm.expm1(u) + lm.log10(u) + lm.log1p(u) + lm.sinh(u) + lm.tanh(u) + lm.pow(u, v)
    tl.store(y + i, total)


def test_float32_is_made_of_operations_rounded_once():
    """No approximate instruction and no flushed subnormal, so that a GPU gives the CPU's bits."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(rounded_once, {"x": "*fp32", "y": "*fp32", "B": "constexpr"}, {(2,): 128})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    instructions = {line.split()[0] for line in made.asm["ptx"].splitlines() if ".f32" in line}
    assert {"fma.rn.f32", "div.rn.f32", "sqrt.rn.f32"} <= instructions
    instructions.discard("cvt.rmi.ftz.f32.f32")  # floor, of exponents in pow: a subnormal one is no integer either way
    assert not [name for name in instructions if any(w in name for w in (".approx", ".full", ".ftz"))]
