"""Exchange of memory on a GPU, on the driver in Python."""

import gc

import numpy as np
import pytest
from tests.tensor.test_exchange import Writer

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, ExchangeError
from nbxtensor.run import Device
from nbxtensor.tensor import exchange, from_numpy_array
from nbxtensor.tensor.capsules import borrow


@pytest.fixture
def card(cuda, monkeypatch):
    """Device 1 of the driver, called by DLPack's number too."""
    devices = {f"cuda:{index}": Device(cuda, index) for index in range(2)}
    monkeypatch.setattr(exchange, "open_device", lambda name: devices.get(name) or nbx.device(name))
    find = exchange.registry.backend
    monkeypatch.setattr(exchange.registry, "backend", lambda name: cuda if name == "cuda" else find(name))
    yield devices["cuda:1"]
    for device in devices.values():
        device.allocator.trim()


def tensor_on(card, *values):
    return nbx.asarray(np.array(values, np.float32), device=card)


def order(library, card):
    """What ran on the card's stream and on the default stream, in order."""
    seen = []
    library.handles[card.backend.stream(1)].queue.append(lambda: seen.append("ours"))
    return seen, lambda: library.default[1].queue.append(lambda: seen.append("theirs"))


@pytest.mark.parametrize("stream", [None, 1])
def test_the_reader_s_stream_waits_for_ours(library, card, stream):
    x = tensor_on(card, 1, 2, 3)
    assert x.__dlpack_device__() == (2, 1)
    seen, then = order(library, card)
    lent = borrow(x.__dlpack__(stream=stream, max_version=(1, 0))).lent
    assert (lent.address, lent.device, lent.code, lent.shape) == (x.storage.address, (2, 1), (2, 32), (3,))
    then()
    library.drain(library.default[1])
    assert seen == ["ours", "theirs"]


def test_a_reader_may_order_by_itself(library, card):
    x = tensor_on(card, 1, 2, 3)
    seen, then = order(library, card)
    capsule = x.__dlpack__(stream=-1)
    then()
    library.drain(library.default[1])
    assert seen == ["theirs"]
    del capsule
    for stream in (0, True, -2, "1"):
        with pytest.raises(ArgumentError, match="__dlpack__: a stream is None, -1 for no order"):
            x.__dlpack__(stream=stream)


def test_memory_that_comes_back_is_used_after_what_the_reader_started(library, card):
    x = tensor_on(card, 1, 2, 3)
    capsule = x.__dlpack__()
    del x
    gc.collect()
    seen, then = [], library.default[1].queue.append
    then(lambda: seen.append("theirs"))
    del capsule
    library.handles[card.backend.stream(1)].queue.append(lambda: seen.append("ours"))
    card.backend.synchronize(1)
    assert seen == ["theirs", "ours"]


def test_their_memory_is_read_in_order_and_given_back_when_we_are_done(library, card):
    memory = card.backend.memory(1)
    address = memory.allocate(64)
    memory.copy_in(address, np.arange(16, dtype=np.float32).data)
    place = {"version": 3, "shape": (2, 3), "typestr": "<f4", "strides": (32, 4), "data": (address + 4, False)}
    writer = Writer(np.asarray(type("Place", (), {"__array_interface__": place})()), device=(2, 1))
    x = nbx.from_dlpack(writer)
    assert writer.asked == [{"max_version": (1, 1), "stream": card.backend.stream(1)}]
    assert (x.device, x.shape, x.strides) == (card, (2, 3), (8, 1))
    assert x.tolist() == [[1, 2, 3], [9, 10, 11]]
    late = []
    library.handles[card.backend.stream(1)].queue.append(lambda: late.append(writer.returned))
    del x
    gc.collect()
    assert (late, writer.returned) == ([0], 1)
    card.backend.synchronize(1)
    memory.free(address)


def test_an_address_that_no_load_takes_is_refused(card):
    writer = Writer(np.zeros(16, np.uint8)[1:13].view(np.float32), device=(2, 1))
    with pytest.raises(ExchangeError, match="from_dlpack: an address that is a multiple of 4"):
        nbx.from_dlpack(writer)
    gc.collect()
    assert writer.returned == 1


def test_elements_are_copied_to_the_host_where_that_is_asked(card):
    x = tensor_on(card, 1, 2, 3)
    lent = borrow(x.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert lent.lent.copied
    with pytest.raises(BufferError, match=r"copy=False, but device \(1, 0\) was asked for. The tensor is on \(2, 1\)"):
        x.__dlpack__(dl_device=(1, 0), copy=False)


def test_tensors_go_from_card_to_card_without_the_host(library, cuda, card):
    x = tensor_on(card, *range(6))
    library.failing["cuMemcpyDtoHAsync_v2"] = 1
    there = x[2:].to(Device(cuda, 0))
    library.failing.clear()
    assert (there.device.index, there.tolist()) == (0, [2, 3, 4, 5])
    assert x[0:0].to(Device(cuda, 0)).shape == (0,)


def test_no_elements_have_no_address(card):
    assert borrow(tensor_on(card).__dlpack__()).lent.address == 0


def test_the_cuda_array_interface_goes_both_ways(library, card):
    x = tensor_on(card, *range(12)).reshape(3, 4).T
    told = x.__cuda_array_interface__
    assert told == {
        "version": 3,
        "shape": (4, 3),
        "typestr": "<f4",
        "data": (x.storage.address, False),
        "strides": (4, 16),
        "stream": card.backend.stream(1),
    }
    other = type("Other", (), {"__cuda_array_interface__": told | {"stream": 1}})()
    seen, then = [], library.default[1].queue.append
    then(lambda: seen.append("theirs"))
    y = nbx.asarray(other)
    assert (y.device, y.strides, y.tolist()) == (card, (1, 4), x.tolist())
    assert seen == ["theirs"]
    del y
    for change, message in (({"mask": other}, "without a mask"), ({"strides": (3, 4)}, "strides of whole elements")):
        with pytest.raises(ExchangeError, match=message):
            nbx.asarray(type("Other", (), {"__cuda_array_interface__": told | change})())
    whole = type("Other", (), {"__cuda_array_interface__": told | {"strides": None, "shape": (2, 6)}})()
    assert nbx.asarray(whole).strides == (6, 1)
    coded = from_numpy_array(np.zeros(2, np.uint16), "bfloat16", device=card)
    assert not hasattr(coded, "__cuda_array_interface__")
