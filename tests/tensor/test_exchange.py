"""DLPack on the CPU, with numpy and with readers and writers of any version."""

import ctypes
import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.dtype.itemsize import bits, names, numpy_dtype
from nbxtensor.errors import ArgumentError, CaptureError, DtypeError, ExchangeError
from nbxtensor.tensor import from_numpy_array
from nbxtensor.tensor.capsules import Lent, borrow, lend

WHOLE = [name for name in names() if bits(name) >= 8]


class Writer:
    """Another library's array: memory that it lends, by DLPack 1 or before."""

    def __init__(self, array, code=(2, 32), device=(1, 0), *, modern=True, readonly=False):
        self.array, self.code, self.device, self.modern, self.readonly = array, code, device, modern, readonly
        self.asked, self.returned = [], 0

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked.append(options)
        if not self.modern and options:
            raise TypeError("unexpected keyword argument")
        strides = tuple(s // self.array.itemsize for s in self.array.strides)
        address = self.array.__array_interface__["data"][0] if self.array.size else 0
        lent = Lent(address, self.device, self.code, self.array.shape, strides, self.readonly)
        return lend(lent, Counted(self), versioned=self.modern)


class Counted:
    def __init__(self, writer):
        self.writer = writer

    def __del__(self):
        self.writer.returned += 1


class Refusing(Writer):
    def __dlpack__(self, **options):
        raise BufferError("no such memory")


class Wrapped:
    """A tensor that is known by DLPack alone, read by a version of it."""

    def __init__(self, tensor, version):
        self.tensor, self.version = tensor, version

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options | {"max_version": self.version})


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (1, 9), (2, 0)])
@pytest.mark.parametrize("dtype", WHOLE)
def test_every_dtype_goes_round_without_a_copy(dtype, version):
    x = from_numpy_array((np.arange(24) % 7).astype(numpy_dtype(dtype)).reshape(2, 3, 4), dtype)
    y = nbx.from_dlpack(Wrapped(x, version))
    assert (y.dtype, y.shape, y.strides) == (x.dtype, x.shape, x.strides)
    assert np.shares_memory(x.numpy(), y.numpy())
    assert y.numpy().tobytes() == x.numpy().tobytes()


@given(st.data())
def test_views_go_round_as_they_are(data):
    x = nbx.arange(60).reshape(3, 4, 5)
    view = x.permute(*data.draw(st.permutations(range(3))))
    view = view.narrow(0, 1, data.draw(st.integers(0, view.shape[0] - 1)))
    view = data.draw(st.sampled_from([view, view[:, 0], view[..., None], view[:, :1].expand(-1, 6, -1), view[0:0]]))
    for got in (nbx.from_dlpack(Wrapped(view, (1, 0))).numpy(), np.from_dlpack(view)):
        assert got.shape == view.shape
        assert (got == view.numpy()).all()
        assert not got.size or np.shares_memory(got, x.numpy())


def test_numpy_reads_and_writes():
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    assert np.shares_memory(nbx.from_dlpack(x[:, ::2]).numpy(), x)
    assert nbx.from_dlpack(x[::-1, 1:]).tolist() == x[::-1, 1:].tolist()
    got = np.from_dlpack(nbx.from_dlpack(x))
    assert np.shares_memory(got, x)
    assert np.from_dlpack(nbx.ones(())).tolist() == 1.0


def test_memory_that_may_only_be_read_stays_so():
    x = np.arange(4.0)
    x.flags.writeable = False
    lent = nbx.from_dlpack(Writer(x, (2, 64), readonly=True))
    assert not lent.numpy().flags.writeable
    tensor = nbx.asarray(x)
    assert borrow(tensor.__dlpack__(max_version=(1, 0))).lent.readonly
    with pytest.raises(BufferError, match="Got a reader of a version before 1"):
        tensor.__dlpack__()
    assert not borrow(tensor.__dlpack__(copy=True)).lent.readonly


def test_copies_are_made_and_refused_as_asked():
    x = nbx.arange(5)
    taken = borrow(x.__dlpack__(max_version=(1, 0), copy=True)).lent
    assert taken.copied
    assert taken.address != x.storage.address
    shared = borrow(x.__dlpack__(max_version=(1, 0), copy=False, dl_device=(1, 0))).lent
    assert not shared.copied
    assert shared.address == x.storage.address
    assert not np.shares_memory(nbx.from_dlpack(x.numpy(), copy=True).numpy(), x.numpy())
    with pytest.raises(ExchangeError, match=r"a device that a backend drives. Got one of kind 99"):
        x.__dlpack__(dl_device=(99, 0))
    with pytest.raises(ExchangeError, match=r"copy=False, but device \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0), copy=False)


def test_an_old_library_is_asked_its_way():
    writer = Writer(np.arange(6, dtype=np.float32), modern=False)
    assert nbx.from_dlpack(writer).tolist() == [0, 1, 2, 3, 4, 5]
    assert writer.asked == [{"max_version": (1, 1)}, {}]
    gc.collect()
    assert writer.returned == 1


@pytest.mark.parametrize("modern", [True, False])
def test_memory_is_given_back_once_when_the_last_view_goes(modern):
    writer = Writer(np.arange(6, dtype=np.float32), modern=modern)
    x = nbx.from_dlpack(writer)
    view, array = x[2:], x.numpy()
    del x
    assert writer.returned == 0
    del view
    assert writer.returned == 0
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    del array
    assert writer.returned == 1


def test_a_capsule_that_nobody_takes_gives_the_memory_back():
    writer = Writer(np.arange(6, dtype=np.float32))
    for options in ({"max_version": (1, 0)}, {}):
        capsule = writer.__dlpack__(**options)
        del capsule
    assert writer.returned == 2
    capsule = nbx.ones(3).__dlpack__()
    borrowed = borrow(capsule)
    with pytest.raises(ExchangeError, match="a DLPack capsule that nobody has taken"):
        borrow(capsule)
    del capsule
    assert borrowed.lent.shape == (3,)
    with pytest.raises(ExchangeError, match="Got 3"):
        borrow(3)


def test_an_exporter_without_a_number_for_its_device_is_refused():
    class Elsewhere:
        def __dlpack__(self, **_):
            raise AssertionError

        def __dlpack_device__(self):
            raise ValueError("Unknown device type meta for Dlpack")

    with pytest.raises(ExchangeError, match="device type meta"):
        nbx.from_dlpack(Elsewhere())


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_what_is_lent_outlives_the_tensor(version):
    x = nbx.arange(1000) + 1
    storage = weakref.ref(x.storage)
    array = np.from_dlpack(Wrapped(x, version))
    del x
    gc.collect()
    assert storage() is not None
    assert array.sum() == 500500
    del array
    gc.collect()
    assert storage() is None


def test_a_reader_that_fails_has_its_own_error_and_leaves_nothing():
    """The memory is given back while the exception is under way."""
    x = nbx.ones(4, dtype="bfloat16")
    storage = weakref.ref(x.storage)
    for version in (None, (1, 0)):
        with pytest.raises((BufferError, RuntimeError), match="dtype"):
            np.from_dlpack(Wrapped(x, version))
    del x
    gc.collect()
    assert storage() is None


def test_many_round_trips_leave_nothing():
    device = nbx.device("cpu")
    x = nbx.ones(4096)
    gc.collect()
    live = device.allocator.live

    def work():
        for _ in range(300):
            y = np.from_dlpack(nbx.from_dlpack(Wrapped(x + 1, (1, 0))))
            assert y[0] == 2
            x.__dlpack__()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert device.allocator.live == live


def test_a_reader_may_delete_on_a_thread_of_its_own():
    writer = Writer(np.arange(6, dtype=np.float32))
    held = [nbx.from_dlpack(writer)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert writer.returned == 1


def test_what_cannot_be_exchanged_is_refused_by_name():
    x = nbx.arange(6)
    reversed_ = nbx.asarray(np.arange(6)[::-1])
    with pytest.raises(BufferError, match=r"strides of zero or more. Got \(-1,\) for shape \(6,\)"):
        reversed_.__dlpack__()
    assert np.from_dlpack(reversed_.copy()).tolist() == [5, 4, 3, 2, 1, 0]
    for stream in (0, 1, -1, True):
        with pytest.raises(ArgumentError, match="stream is None for memory of cpu"):
            x.__dlpack__(stream=stream)
    with pytest.raises(DtypeError, match="unknown dtype"):
        nbx.from_dlpack(Writer(np.zeros(3, np.float32), code=(3, 64)))
    with pytest.raises(ExchangeError, match="no such memory"):
        nbx.from_dlpack(Refusing(np.zeros(3)))
    with pytest.raises(CaptureError, match="a traced tensor has no values"):
        nbx.trace(lambda x: x.__dlpack__(), x.spec)
    with pytest.raises(AttributeError, match="of a tensor on an NVIDIA GPU"):
        _ = x.__cuda_array_interface__
    assert not hasattr(x, "__cuda_array_interface__")


def test_strides_that_leave_all_memory_are_refused():
    x = np.lib.stride_tricks.as_strided(np.zeros(2, np.float32), (2,), (4 << 57,))
    writer = Writer(x)
    with pytest.raises(ExchangeError, match="strides that stay in memory"):
        nbx.from_dlpack(writer)
    assert writer.returned == 1


def test_asarray_takes_what_has_dlpack():
    writer = Writer(np.arange(6, dtype=np.float32))
    assert nbx.asarray(writer, dtype="int32").tolist() == [0, 1, 2, 3, 4, 5]
    assert writer.returned == 1


def test_a_version_to_come_is_not_read():
    capsule = nbx.ones(2).__dlpack__(max_version=(1, 0))
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    ctypes.c_uint32.from_address(get(capsule, b"dltensor_versioned")).value = 2
    with pytest.raises(ExchangeError, match=r"a capsule of DLPack 1. Got version 2"):
        borrow(capsule)
