"""What only a process of its own can show: warm starts, forks, exits, and processes that share a cache."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("triton")

PRELUDE = '''
import sys
import numpy as np
from nbxtensor.backend.contract import Bound, KernelRequest
from nbxtensor.backend.registry import backend

TEXT = """
import triton
import triton.language as tl


@triton.jit
def add(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)
"""
cpu = backend("cpu")
signature = {"x": "*fp32", "y": "*fp32", "o": "*fp32", "n": "i32"}
compiled = cpu.compile(KernelRequest("", "add", TEXT, signature, {"BLOCK": 64}), cpu.target())
add = cpu.load(compiled)
x, y, o = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32), np.zeros(1000, np.float32)
bound = Bound(add, (16, 1, 1), (x.ctypes.data, y.ctypes.data, o.ctypes.data, 1000))


def check():
    assert np.array_equal(o, x + 1)
    o[:] = 0


def set_threads(count):
    from nbxtensor.backend.cpu.pool import set_threads
    set_threads(count)
'''


def start(script, cache, *options):
    environment = os.environ | {"NBX_CACHE_DIR": str(cache)}
    code = PRELUDE + textwrap.dedent(script)
    pipe = subprocess.PIPE
    arguments = [sys.executable, "-W", "error", *options, "-c", code]
    return subprocess.Popen(arguments, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process):
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, ""), errors
    return out


def run(script, cache, *options):
    return finish(start(script, cache, *options))


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache directory that a first process has filled."""
    cache = tmp_path_factory.mktemp("warm")
    run("set_threads(2); cpu.launch(bound); check(); cpu.record([bound]).run(); check()", cache)
    return cache


def test_a_warm_start_loads_no_triton(warm):
    out = run(
        """
        set_threads(2)
        cpu.launch(bound); check()
        replay = cpu.record([bound] * 3); replay.run(); check()
        print(sorted(m for m in sys.modules if m.partition(".")[0] in ("triton", "torch", "llvmlite")))
        """,
        warm,
    )
    assert out == "[]\n"


def test_a_cold_start_is_seen_to_load_triton(tmp_path):
    """The control of the test above."""
    assert run('print("triton" in sys.modules)', tmp_path) == "True\n"


def test_damaged_entries_are_compiled_again(tmp_path):
    run("cpu.launch(bound); check()", tmp_path)
    files = [path for path in (tmp_path / "kernels").rglob("*") if path.is_file()]
    assert len(files) == 2  # the kernel and the runtime
    whole = {path: path.read_bytes() for path in files}
    for path in files:
        path.write_bytes(whole[path][:-7] + bytes(7))
    run("cpu.launch(bound); check()", tmp_path)
    assert {path: path.read_bytes() for path in files} == whole


def test_processes_that_start_at_once_share_a_cache(tmp_path):
    processes = [start("cpu.launch(bound); check()", tmp_path) for _ in range(3)]
    for process in processes:
        finish(process)
    assert not list((tmp_path / "kernels").rglob(".writing-*"))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interpreter_with_sleeping_helpers_exits(warm, threads):
    run(f"set_threads({threads}); cpu.launch(bound); cpu.record([bound]).run(); check()", warm)


def test_what_runs_after_the_helpers_went_home_runs_on_its_caller(warm):
    """A handler registered before the backend was loaded runs after the team's own."""
    out = run(
        """
        import atexit, threading
        from nbxtensor.backend.cpu.device import CpuBackend

        def late():
            print(threading.active_count())
            fresh.launch(bound); check()
            replay.run(); check()
            print("done", threading.active_count())

        atexit.register(late)
        set_threads(3)
        fresh = CpuBackend()
        replay = fresh.record([bound])
        replay.run(); check()
        print(threading.active_count())
        """,
        warm,
    )
    assert out.split() == ["3", "1", "done", "1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_has_a_team_of_its_own(warm):
    out = run(
        """
        import os, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork with threads
        set_threads(3)
        replay = cpu.record([bound])
        replay.run(); check()
        busy = threading.Event()

        def work():
            own = cpu.record([bound] * 2000)
            while not busy.is_set():
                own.run()

        other = threading.Thread(target=work); other.start()
        statuses = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                o = np.zeros(1000, np.float32)
                bound = Bound(add, (16, 1, 1), (x.ctypes.data, y.ctypes.data, o.ctypes.data, 1000))
                cpu.launch(bound); check()
                cpu.record([bound] * 10).run(); check()
                os._exit(0 if threading.active_count() == 3 else 1)
            statuses.append(os.waitpid(child, 0)[1])
        busy.set(); other.join()
        o[:] = 0; replay.run(); check()
        print(statuses)
        """,
        warm,
    )
    assert out == "[0, 0, 0, 0, 0]\n"


def test_an_interrupt_during_a_replay_is_raised_after_it(warm):
    out = run(
        """
        import os, signal, threading
        set_threads(2)
        replay = cpu.record([bound] * 20000)
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        runs = 0
        try:
            while True:
                replay.run()
                runs += 1
        except KeyboardInterrupt:
            print("interrupted")
        check()
        replay.run(); check()
        """,
        warm,
    )
    assert out == "interrupted\n"


def test_a_bundle_runs_where_nothing_can_compile(warm, tmp_path):
    """Compiled kernels and the runtime, carried into a process that has no Triton."""
    bundle = tmp_path / "bundle"
    run(
        f"import pathlib, pickle; pathlib.Path({str(bundle)!r}).write_bytes(pickle.dumps((compiled, cpu.runtime())))",
        warm,
    )
    code = textwrap.dedent(
        f"""
        import pathlib, pickle, sys
        for name in ("triton", "llvmlite"):
            sys.modules[name] = None
        import numpy as np
        from nbxtensor.backend.contract import Bound
        from nbxtensor.backend.registry import backend
        compiled, runtime = pickle.loads(pathlib.Path({str(bundle)!r}).read_bytes())
        cpu = backend("cpu")
        cpu.use_runtime(runtime)
        x, o = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
        bound = Bound(cpu.load(compiled), (16, 1, 1), (x.ctypes.data, x.ctypes.data, o.ctypes.data, 1000))
        cpu.record([bound]).run()
        assert np.array_equal(o, 2 * x)
        """
    )
    environment = os.environ | {"NBX_CACHE_DIR": str(tmp_path / "empty")}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True, timeout=60)
