"""Memory exchanged with torch and CuPy on a GPU: nothing is copied, nothing is read too early, nothing is left."""

import gc
import threading

import numpy as np
import pytest
from tests.backend.cuda.planned_memory import device_alone

import nbxtensor as nbx
from nbxtensor.dtype.itemsize import numpy_dtype
from nbxtensor.errors import ExchangeError
from nbxtensor.tensor import from_numpy_array
from nbxtensor.tensor.capsules import borrow

pytestmark = [
    pytest.mark.gpu,
]
NUMPY = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64", "complex128"]
CODED = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def made(dtype):
    values = (np.arange(24) % 5).reshape(4, 6)
    return from_numpy_array(values.astype(numpy_dtype(dtype)), dtype, device="cuda")


def first(x):
    return x.storage.address + x.offset * x.itemsize


class Old:
    """A tensor whose reader knows no version."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)


@pytest.mark.parametrize("dtype", NUMPY + CODED)
def test_torch_shares_every_dtype(torch, dtype):
    x = made(dtype)
    for given in (x, Old(x)):
        there = torch.from_dlpack(given)
        assert str(there.dtype) == f"torch.{dtype}"
        assert there.data_ptr() == first(x)
        back = nbx.from_dlpack(there)
        assert (back.dtype, back.shape, back.strides) == (dtype, x.shape, x.strides)
        assert first(back) == first(x)
        assert back.numpy().tobytes() == x.numpy().tobytes()
    assert str(back.device) == "cuda"


@pytest.mark.parametrize("dtype", NUMPY)
def test_cupy_shares_the_dtypes_of_numpy(cupy, dtype):
    x = made(dtype)
    for there in (cupy.from_dlpack(x), cupy.from_dlpack(Old(x)), cupy.asarray(x)):
        assert there.dtype == dtype
        assert there.data.ptr == first(x)
        assert there.get().tobytes() == x.numpy().tobytes()
        for back in (nbx.from_dlpack(there), nbx.asarray(there)):
            assert first(back) == first(x)
            assert back.tolist() == x.tolist()


def test_views_and_nothing(torch, cupy):
    x = nbx.asarray(np.arange(60, dtype=np.float32).reshape(3, 4, 5)).to("cuda")
    for view in (x.permute(2, 0, 1), x[1:, 2], x[:, :1].expand(-1, 4, -1), x[..., None], x[0, 0, 0], x[0:0], x[:, 4:]):
        for back in (torch.from_dlpack(view), cupy.from_dlpack(view)):
            assert tuple(back.shape) == view.shape
            assert back.tolist() == view.tolist()
            assert nbx.from_dlpack(back).tolist() == view.tolist()
    there = torch.arange(24.0, device="cuda").reshape(4, 6)
    assert nbx.from_dlpack(there.T[1:]).tolist() == there.T[1:].tolist()
    with pytest.raises(ExchangeError, match="strides that stay in memory"):  # CuPy writes -1 without its sign
        nbx.from_dlpack(cupy.arange(24.0).reshape(4, 6)[::-1])
    assert nbx.from_dlpack(torch.empty(0, 3, device="cuda")).shape == (0, 3)


def test_what_torch_starts_is_done_before_we_read(torch):
    """On the default stream and on one of its own; the work before takes a while."""
    want = np.full(1 << 20, 3.0, np.float32)
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            x = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(20_000_000)
            x += 2
            got = nbx.from_dlpack(x) + 1
        assert (got.numpy() == want).all()


def test_what_we_start_is_done_before_torch_reads(torch):
    spec = nbx.Spec((1 << 22,), "float32")

    def fn(x):
        for _ in range(200):
            x = x + 1
        return x

    program = nbx.plan(nbx.trace(fn, spec), device="cuda", optimize=False).load({})
    x = nbx.zeros(1 << 22, device="cuda")
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            there = torch.from_dlpack(program(x, borrow=True))
            total = (there != 200).sum()
        assert int(total) == 0


def test_memory_that_comes_back_waits_for_what_torch_started(torch):
    """A block goes back to the pool while torch still reads it: what we write there next comes after."""
    allocator = nbx.device("cuda").allocator
    allocator.trim()
    for _ in range(5):
        x = nbx.zeros(1 << 20, device="cuda") + 1
        there = torch.from_dlpack(x)
        torch.cuda._sleep(20_000_000)
        total = there.sum()
        del x, there
        again = nbx.zeros(1 << 20, device="cuda") + 7
        assert int(total) == 1 << 20
        del again


def test_memory_of_torch_is_given_back_when_we_are_done(torch):
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    y = nbx.from_dlpack(x)
    del x
    assert torch.cuda.memory_allocated() == held
    z = y + 1
    del y
    gc.collect()
    assert torch.cuda.memory_allocated() == held - (4 << 20)
    other = torch.full((1 << 20,), 9.0, device="cuda")
    assert (z.numpy() == 2).all()
    del other


def test_ours_outlives_the_tensor(torch, cupy):
    for read in (torch.from_dlpack, cupy.from_dlpack):
        live = nbx.device("cuda").allocator.live
        there = read(nbx.asarray(np.arange(1000.0)).to("cuda"))
        nbx.asarray(np.zeros(1000)).to("cuda")
        gc.collect()
        assert float(there.sum()) == 499500
        del there
        gc.collect()
        assert nbx.device("cuda").allocator.live == live


def test_many_round_trips_from_many_threads_leave_nothing(torch, cupy):
    allocator, memory = nbx.device("cuda").allocator, nbx.device("cuda").backend.memory(0)
    x = nbx.asarray(np.arange(1000.0)).to("cuda")
    torch.cuda.synchronize()
    wrong = []

    def work():
        for _ in range(100):
            y = nbx.from_dlpack(cupy.from_dlpack(nbx.from_dlpack(torch.from_dlpack(x + 1))))
            if float(nbx.sum(y)) != 500500:
                wrong.append(1)
            x.__dlpack__()

    work()
    gc.collect()
    live, free = allocator.live, memory.info().free
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not wrong
    assert allocator.live == live
    if device_alone():
        assert free - memory.info().free <= 32 << 20  # torch and CuPy keep pools for each thread


def test_copies_and_the_host(torch):
    x = made("float32")
    assert torch.from_dlpack(x, device="cpu").tolist() == x.tolist()
    assert borrow(x.__dlpack__(max_version=(1, 0), copy=True)).lent.copied
    assert first(nbx.from_dlpack(torch.from_dlpack(x), copy=True)) != first(x)
    assert nbx.from_dlpack(torch.ones(3), device="cuda").tolist() == [1, 1, 1]
    with pytest.raises(BufferError, match="strides of zero or more"):
        nbx.asarray(np.arange(6.0)[::-1]).__dlpack__()


def test_a_gradient_is_not_taken_silently(torch):
    with pytest.raises(BufferError, match="grad"):
        nbx.from_dlpack(torch.ones(3, device="cuda", requires_grad=True))
