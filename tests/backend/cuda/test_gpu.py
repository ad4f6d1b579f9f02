"""The whole house on a GPU: tensors, plans, programs, recordings."""

import threading

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.dtype.itemsize import numpy_dtype
from nbxtensor.errors import OutOfMemoryError
from nbxtensor.tensor import from_numpy_array

pytestmark = [
    pytest.mark.gpu,
]


def block(weights, x):
    wide = nbx.gelu(nbx.linear(x, weights["w"], weights["b"] + 1))
    return nbx.layer_norm(wide, (96,)), nbx.sum(wide, axis=-1)


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((96, 64), np.float32), "b": rng.standard_normal(96, np.float32)}


@pytest.fixture(scope="module")
def programs(weights):
    specs = {name: nbx.Spec(w.shape, "float32") for name, w in weights.items()}
    graph = nbx.trace(block, nbx.Spec((40, 64), "float32"), weights=specs)
    return [nbx.plan(graph, device=device).load(weights) for device in ("cpu", "cuda")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "float8_e4m3fn"])
def test_tensors_move_there_and_back(dtype):
    values = (np.arange(24).reshape(4, 6) % 5).astype(numpy_dtype(dtype))  # of float8: bit patterns
    x = nbx.asarray(values.astype(np.float32)).to(dtype) if dtype == "bfloat16" else from_numpy_array(values, dtype)
    there = x.to("cuda")
    assert str(there.device) == "cuda"
    assert there.dtype == dtype
    assert there.to("cpu").numpy().tobytes() == x.numpy().tobytes()
    assert there[1:, None, 2].tolist() == x[1:, None, 2].tolist()
    assert there.T.tolist() == x.T.tolist()


def test_eager_ops_agree_with_the_cpu():
    rng = np.random.default_rng(1)
    x = nbx.asarray(rng.standard_normal((64, 128), np.float32))
    y = x.to("cuda")

    def both(x):
        return nbx.softmax(nbx.gelu(x @ x.T / 10 + 1), axis=-1)

    np.testing.assert_allclose(both(y).numpy(), both(x).numpy(), atol=1e-5)
    assert float(nbx.sum(both(y))) == pytest.approx(64, abs=1e-3)


def test_operands_on_two_devices_are_refused():
    x = nbx.asarray(np.ones(4, np.float32))
    with pytest.raises(ValueError, match="operands share a device"):
        x + x.to("cuda")


def test_a_program_agrees_with_the_cpu(programs):
    x = np.random.default_rng(2).standard_normal((40, 64), np.float32)
    for wanted, got in zip(*(program(x) for program in programs), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)


def test_inputs_on_the_device_and_borrowed_results(programs):
    x = np.random.default_rng(3).standard_normal((40, 64), np.float32)
    program = programs[1]
    wanted = [t.numpy().copy() for t in program(x)]
    got = program(nbx.asarray(x).to("cuda"), borrow=True)
    assert [t.numpy().tobytes() for t in got] == [w.tobytes() for w in wanted]
    strided = nbx.asarray(np.ascontiguousarray(x.T)).to("cuda").T
    assert program(strided)[1].numpy().tobytes() == wanted[1].tobytes()


def test_replays_follow_their_inputs_and_kept_outputs_stay(programs):
    program = programs[1]
    recording = program.capture()
    assert recording.verified
    assert len(recording) == len(program.launches)
    rng = np.random.default_rng(4)
    inputs = [rng.standard_normal((40, 64), np.float32) for _ in range(5)]
    kept = [recording(x) for x in inputs]
    for x, outputs in zip(inputs, kept, strict=True):
        assert [t.numpy().tobytes() for t in outputs] == [t.numpy().tobytes() for t in program(x)]
    times = recording.profile()
    assert len(times) == len(recording)
    assert min(times) >= 0


def test_threads_run_programs_at_once(programs):
    recording = programs[1].capture()
    x = nbx.asarray(np.linspace(-2, 2, 4096, dtype=np.float32)).to("cuda")
    wanted, wrong = nbx.exp(x).numpy().tobytes(), []

    def work():
        wrong.extend(1 for _ in range(50) if nbx.exp(x).numpy().tobytes() != wanted)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        recording.replay()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_that_is_not_there_is_refused_with_the_numbers():
    device = nbx.device("cuda")
    total = device.backend.memory(0).info().total
    with pytest.raises(MemoryError, match=f"Requested {2 * total} bytes"):
        device.allocator.allocate(2 * total)


@pytest.mark.alone
def test_what_is_said_to_fit_fits():
    allocator = nbx.device("cuda").allocator
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.allocate(1 << 50)
    assert 0 < caught.value.fits <= caught.value.free
    assert allocator.allocate(caught.value.fits).nbytes == caught.value.fits
    allocator.trim()


def test_offsets_past_two_to_the_31_elements():
    device = nbx.device("cuda")
    count = 2**31 + 64
    if device.backend.memory(0).info().free < 4 * count:
        pytest.skip("needs 9 GB of free memory")
    y = nbx.zeros(count, dtype="int8", device="cuda") + 1
    for place in (0, 2**31 - 1, 2**31, count - 1):
        assert y.narrow(0, place, 1).copy().tolist() == [1]
