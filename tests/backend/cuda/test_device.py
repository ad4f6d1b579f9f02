import itertools
import os
import threading

import pytest
from tests.backend.cuda.conftest import Floats, kernel, on
from tests.backend.cuda.fake_libcuda import H200, FakeLibrary

from nbxtensor.backend import device_files
from nbxtensor.backend.abi import Driver
from nbxtensor.backend.contract import Bound, KernelRequest
from nbxtensor.backend.cuda.device import CudaBackend
from nbxtensor.backend.cuda.libcuda import CUDA
from nbxtensor.errors import ArgumentError, CompileError, DriverError, MissingFactError, UnsupportedError
from nbxtensor.op import Target


def absent(name):
    raise OSError(f"{name}: cannot open shared object file")


def test_without_a_driver_there_is_no_device_and_the_reason_is_told():
    cuda = CudaBackend(Driver(CUDA, absent))
    assert cuda.count() == 0
    with pytest.raises(
        MissingFactError, match=r"device cuda:0 is not known.*the NVIDIA driver.*libcuda.so.1: cannot open"
    ):
        cuda.memory()


def test_a_driver_without_a_device_says_so():
    cuda = on(FakeLibrary(devices=0))
    assert cuda.count() == 0
    with pytest.raises(MissingFactError, match=r"cuInit failed. The driver reports CUDA_ERROR_NO_DEVICE \(no CUDA"):
        cuda.target(0)


def test_the_driver_is_not_opened_before_it_is_asked():
    CudaBackend(Driver(CUDA, absent))


def test_a_function_that_the_driver_lacks_is_named():
    cuda = on(FakeLibrary(absent=["cuStreamCreate"]))
    with pytest.raises(UnsupportedError, match="the driver has the function cuStreamCreate"):
        cuda.memory()


def test_a_known_card_has_the_facts_of_its_file_and_what_the_driver_reports(cuda):
    target = cuda.target(1)
    assert (target.backend, target.arch) == ("cuda", "sm_90")
    assert target.features == frozenset(device_files.fact("nvidia", "h200", "dtypes.computed"))
    assert target.fact("memory.copy_bandwidth") == device_files.fact("nvidia", "h200", "memory.copy_bandwidth")
    assert target.fact("memory.bytes") == 1 << 30
    assert target.fact("compute.units") == 132
    assert target.fact("memory.max_shared_memory_per_block") == 232448
    assert cuda.target(1) == target


def test_an_unknown_card_works_with_what_the_driver_reports():
    cuda = on(FakeLibrary(name="NVIDIA Future 1", attributes=H200 | {75: 8, 76: 6}))
    target = cuda.target()
    assert target.arch == "sm_86"
    assert {"bfloat16", "float64"} <= target.features
    assert "float8_e4m3fn" not in target.features
    assert target.fact("name") == "NVIDIA Future 1"
    with pytest.raises(MissingFactError):
        target.fact("memory.copy_bandwidth")


@pytest.mark.parametrize("method", ["target", "memory", "synchronize"])
def test_a_device_that_is_not_there_is_refused(cuda, method):
    with pytest.raises(MissingFactError, match=r"device cuda:2 is not known. There are cuda:0 to cuda:1"):
        getattr(cuda, method)(2)


def launch(cuda, floats, *, index=0, out=None, loaded=None):
    x = floats.put(1, 2, 3)
    out = out or floats.put(0, 0, 0)
    loaded = loaded or cuda.load(kernel(), index)
    return Bound(loaded, (5, 6, 7), (out, -1, x, 3, 10.0, 0.5)), out


def test_a_launch_passes_every_argument(cuda, library, floats):
    bound, out = launch(cuda, floats)
    cuda.launch(bound)
    assert floats.get(out, 3) == [9.5, 19.5, 29.5]
    name, grid, block, shared, values = library.launched[0]
    assert (name, grid, block, shared) == ("scale", (5, 6, 7), (128, 1, 1), 0)
    assert values[-2:] == (0, 0)


def test_launches_on_two_devices_from_two_threads(cuda):
    results = {}

    def work(index):
        floats = Floats(cuda.memory(index))
        for _ in range(20):
            bound, out = launch(cuda, floats, index=index)
            cuda.launch(bound, index)
            results.setdefault(index, []).append(floats.get(out, 3))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: [[9.5, 19.5, 29.5]] * 20, 1: [[9.5, 19.5, 29.5]] * 20}


def test_launches_go_to_their_device_whatever_device_is_current(cuda, library):
    """One thread turns from device to device; another has never used one."""
    places = [Floats(cuda.memory(index)) for index in range(2)]
    made = [launch(cuda, floats, index=index) for index, floats in enumerate(places)]
    starts = [cuda.starter(bound, (0,), index) for index, (bound, _) in enumerate(made)]
    out = [floats.put(0, 0, 0) for floats in places]

    def work():
        for _ in range(2):
            for index in (0, 1):
                cuda.launch(made[index][0], index)
                starts[index]([out[index]])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    for floats, (_, first), second in zip(places, made, out, strict=True):
        assert floats.get(first, 3) == floats.get(second, 3) == [9.5, 19.5, 29.5]
    assert len(library.launched) == 16


def test_a_failing_launch_names_the_function(cuda, library, floats):
    bound, _ = launch(cuda, floats)
    cuda.launch(bound)
    for status, name in ((700, "ILLEGAL_ADDRESS"), (400, "INVALID_HANDLE")):
        library.failing["cuLaunchKernelEx"] = status
        with pytest.raises(DriverError, match=f"cuLaunchKernelEx failed. The driver reports CUDA_ERROR_{name}"):
            cuda.launch(bound)
    library.failing.clear()


def test_a_kernel_runs_on_the_device_it_was_loaded_on(cuda, floats):
    bound, _ = launch(cuda, floats)
    with pytest.raises(ArgumentError, match=r"a launch on cuda:1 runs a kernel loaded there. Got one of cuda:0"):
        cuda.launch(bound, 1)
    with pytest.raises(ArgumentError, match=r"Got one of cuda:0"):
        cuda.record([bound], 1)


def test_a_kernel_of_another_backend_is_refused(cuda):
    class Foreign:
        compiled = kernel()

    with pytest.raises(ArgumentError, match=r"scale: a launch on cuda:0 runs a kernel loaded there. Got Foreign"):
        cuda.launch(Bound(Foreign(), (1, 1, 1), ()))


@pytest.mark.parametrize("grid", [(1, 65536, 1), (1, 1, 65536), (2**31, 1, 1), (-1, 1, 1)])
def test_grids_that_the_card_does_not_allow_are_refused(cuda, floats, grid):
    bound, _ = launch(cuda, floats)
    with pytest.raises(ArgumentError, match=r"a grid counts programs.*at most \(2147483647, 65535, 65535\)"):
        cuda.launch(Bound(bound.kernel, grid, bound.arguments))


def test_code_for_a_folded_grid_is_launched_along_one_axis(cuda, library, floats):
    loaded = cuda.load(kernel(folded=[2, 70_000, 3]))
    bound, out = launch(cuda, floats, loaded=loaded)
    whole = Bound(loaded, (2, 70_000, 3), bound.arguments)
    cuda.launch(whole)
    cuda.starter(whole, (0,))([out])
    cuda.record([whole]).run()
    assert [entry[1] for entry in library.launched] == [(420_000, 1, 1)] * 3
    cuda.launch(Bound(loaded, (0, 70_000, 3), bound.arguments))  # nothing
    with pytest.raises(ArgumentError, match=r"runs on that grid. Got \(2, 70000, 4\) for \(2, 70000, 3\)"):
        cuda.launch(Bound(loaded, (2, 70_000, 4), bound.arguments))


def test_values_that_do_not_fit_are_named(cuda, floats):
    bound, out = launch(cuda, floats)
    with pytest.raises(ArgumentError, match=r"scale: narrow is i8. Got 200. It takes \(out: \*fp32, narrow: i8"):
        cuda.launch(Bound(bound.kernel, (1, 1, 1), (out, 200, out, 3, 1.0, 1.0)))


def test_shared_memory_past_48_kib_is_opted_in_to(cuda, library, floats):
    loaded = cuda.load(kernel(shared_nbytes=100_000))
    bound, _ = launch(cuda, floats, loaded=loaded)
    cuda.launch(bound)
    cuda.record([bound]).run()
    assert [entry[3] for entry in library.launched] == [100_000, 100_000]
    assert loaded.resources.shared_nbytes == 100_000


def test_more_shared_memory_than_the_card_has_is_refused_with_both_numbers(cuda):
    with pytest.raises(UnsupportedError, match=r"needs 232449 bytes, and the driver allows 232448"):
        cuda.load(kernel(shared_nbytes=232_449))


def test_more_threads_than_registers_allow_are_refused(cuda, library):
    forms, body, _ = library.kernels["scale"]
    library.kernels["scale"] = forms, body, {0: 256, 3: 16, 4: 255}
    with pytest.raises(UnsupportedError, match=r"needs 512 threads, the driver allows 256"):
        cuda.load(kernel(warps=16))
    loaded = cuda.load(kernel())
    assert (loaded.resources.registers, loaded.resources.local_nbytes) == (255, 16)


def test_code_of_another_architecture_is_not_loaded(cuda):
    with pytest.raises(UnsupportedError, match=r"scale: code runs on its own architecture. Got sm_80 for sm_90"):
        cuda.load(kernel(arch="sm_80"))


def test_code_that_is_none_is_refused(cuda):
    made = kernel()
    broken = type(made)(made.name, b"nothing", made.parameters, made.metadata)
    with pytest.raises(CompileError, match="CUDA_ERROR_INVALID_IMAGE"):
        cuda.load(broken)
    nameless = type(made)("other", made.binary, made.parameters, made.metadata)
    with pytest.raises(CompileError, match="CUDA_ERROR_NOT_FOUND"):
        cuda.load(nameless)


def test_a_kernel_is_loaded_once_while_it_is_held(cuda, library):
    loaded = cuda.load(kernel())
    assert cuda.load(kernel()) is loaded
    assert cuda.load(kernel(), 1) is not loaded
    assert len(library.live("module")) == 1  # the second is gone already
    del loaded
    assert not library.live("module")


def test_code_stays_until_what_was_started_has_run(cuda, floats):
    bound, out = launch(cuda, floats)
    cuda.launch(bound)
    del bound  # the fixture checks that the module was not in use
    assert floats.get(out, 3) == [9.5, 19.5, 29.5]


def test_a_replay_runs_all_launches_in_order_and_keeps_their_code(cuda, library, floats):
    first, out = launch(cuda, floats)
    again = Bound(first.kernel, (1, 1, 1), (out, 0, out, 3, 2.0, 1.0))
    nothing = Bound(first.kernel, (0, 1, 1), first.arguments)
    replay = cuda.record([first, nothing, again])
    assert library.launched == []
    del first, again, nothing
    for _ in range(3):
        replay.run()
        assert floats.get(out, 3) == [20.0, 40.0, 60.0]
    assert [entry[1] for entry in library.launched] == [(5, 6, 7), (1, 1, 1)] * 3


def chain(cuda, floats, count, **metadata):
    """Launches of out = in * 2 + 1 from one buffer to the next."""
    loaded = cuda.load(kernel(**metadata))
    places = [floats.put(*([1.0] * 3))] + [floats.put(0, 0, 0) for _ in range(count)]
    pairs = itertools.pairwise(places)
    return [Bound(loaded, (1, 1, 1), (out, 0, x, 3, 2.0, 1.0)) for x, out in pairs], places


def test_a_chain_of_kernels_that_wait_by_themselves_starts_them_early(cuda, library, floats):
    launches, places = chain(cuda, floats, 4, early=True)
    cuda.record(launches).run()
    assert floats.get(places[-1], 3) == [31.0] * 3
    assert library.edges == [True] * 3
    launches, places = chain(cuda, floats, 3)
    assert cuda.record(launches).profile() == (250_000.0,) * 3
    assert library.edges == [False] * 6


@pytest.mark.parametrize("metadata", [{"early": True}, {"early": True, "waits_first": True}, {}])
def test_kernels_that_wait_before_they_read_are_started_early(cuda, library, floats, metadata):
    (bound,), _ = chain(cuda, floats, 1, **metadata)
    cuda.launch(bound)
    cuda.starter(bound, (0,))([bound.arguments[0]])
    assert library.early == [metadata.get("waits_first", False)] * 2


def test_an_old_driver_starts_nothing_early(library, tmp_path):
    library.version = 12020
    cuda = on(library)
    (bound,), _ = chain(cuda, Floats(cuda.memory()), 1, early=True, waits_first=True)
    cuda.launch(bound)
    assert library.early == [False]
    launches, _ = chain(cuda, Floats(cuda.memory()), 3, early=True)
    cuda.record(launches).run()
    assert library.edges == [False] * 2


def test_launches_wait_for_those_named_alone(cuda, library, floats):
    """The driver here runs what may run as late as it may: a missing edge would be seen."""
    launches, (start, first, second, third, last) = chain(cuda, floats, 4)
    wide = [
        launches[0],  # first = f(start)
        Bound(launches[0].kernel, (1, 1, 1), (second, 0, start, 3, 5.0, 0.0)),
        Bound(launches[0].kernel, (0, 1, 1), (second, 0, start, 3, 5.0, 0.0)),  # nothing, after the two before
        Bound(launches[0].kernel, (1, 1, 1), (third, 0, first, 3, 1.0, 1.0)),
        Bound(launches[0].kernel, (1, 1, 1), (last, 0, second, 3, 1.0, 2.0)),
    ]
    replay = cuda.record(wide, dependencies=[[], [], [0, 1], [2], [1]])
    assert len(library.edges) == 3
    for _ in range(2):
        replay.run()
        assert [floats.get(place, 1) for place in (first, second, third, last)] == [[3.0], [5.0], [4.0], [7.0]]


@pytest.mark.parametrize("dependencies", [[[]], [[], [1]], [[], [-1]], [[0], []], [[], [], []]])
def test_dependencies_name_earlier_launches(cuda, floats, dependencies):
    launches, _ = chain(cuda, floats, 2)
    with pytest.raises(ArgumentError, match="record: "):
        cuda.record(launches, dependencies=dependencies)


def test_a_launch_that_is_recorded_takes_other_arguments(cuda, library, floats):
    launches, places = chain(cuda, floats, 3)
    replay = cuda.record([*launches, Bound(launches[0].kernel, (0, 1, 1), launches[0].arguments)])
    replay.run()
    assert floats.get(places[-1], 1) == [15.0]
    instances = len(library.live("instance"))
    other = floats.put(10, 20, 30)
    replay.rebind(0, (places[1], 0, other, 3, 1.0, 0.0))
    replay.rebind(3, (places[1], 0, other, 3, 1.0, 0.0))
    assert len(library.live("instance")) == instances
    assert replay.launches[0].arguments[2] == other
    for _ in range(2):
        replay.run()
        assert floats.get(places[-1], 3) == [43.0, 83.0, 123.0]
    assert len(replay.profile()) == 4
    assert floats.get(places[-1], 3) == [43.0, 83.0, 123.0]
    with pytest.raises(ArgumentError, match=r"scale: narrow is i8. Got 300"):
        replay.rebind(1, (places[1], 300, other, 3, 1.0, 0.0))
    with pytest.raises(ArgumentError, match=r"scale: one value per parameter. Got 1"):
        replay.rebind(3, (1,))
    with pytest.raises(ArgumentError, match=r"rebind: the number of a launch. Got 4 of 4"):
        replay.rebind(4, ())


def test_a_profile_times_every_launch(cuda, floats):
    bound, _ = launch(cuda, floats)
    nothing = Bound(bound.kernel, (0, 1, 1), bound.arguments)
    replay = cuda.record([bound, nothing, bound])
    assert replay.profile() == replay.profile() == (250_000.0, 0.0, 250_000.0)


def test_what_fails_while_it_is_recorded_leaves_nothing(cuda, library, floats):
    bound, _ = launch(cuda, floats)
    library.failing["cuGraphInstantiateWithFlags"] = 2
    with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        cuda.record([bound])
    library.failing.clear()


def test_a_failure_of_the_device_has_the_driver_s_name(cuda, library, floats):
    bound, _ = launch(cuda, floats)
    library.failing["cuLaunchKernelEx"] = 700
    with pytest.raises(DriverError, match=r"cuda: cuLaunchKernelEx failed. .*CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        cuda.launch(bound)
    assert (caught.value.function, caught.value.status) == ("cuLaunchKernelEx", 700)
    library.failing["cuLaunchKernelEx"] = 12345
    with pytest.raises(DriverError, match=r"reports status 12345\."):
        cuda.launch(bound)


def test_a_target_of_another_backend_is_refused(cuda):
    request = KernelRequest("", "one", "", {}, {})
    with pytest.raises(ArgumentError, match=r"one: compiled for a target of CUDA. Got one of 'cpu'"):
        cuda.compile(request, Target("cpu", "x86-64-v4"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused(cuda, library, floats):
    bound, out = launch(cuda, floats)
    start = cuda.starter(bound, (0,))
    cuda.launch(bound)
    before = len(library.launched)
    for use in (cuda.memory, lambda: cuda.launch(bound), lambda: start([out])):
        child = os.fork()
        if child == 0:
            try:
                use()
            except UnsupportedError:
                os._exit(7 if len(library.launched) == before else 2)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
