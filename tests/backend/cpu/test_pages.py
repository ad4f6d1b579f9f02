import subprocess
import sys

import pytest

from nbxtensor.backend.cpu.pages import Pages

SCRIPT = """
import ctypes, os
from nbxtensor.backend.cpu.pages import Pages
pages = Pages(100)
pages.view[:3] = b"old"
child = os.fork()
if child == 0:
    pages.view[:3] = b"new"
    os._exit(0 if ctypes.string_at(pages.address, 3) == b"new" else 1)
assert os.waitpid(child, 0)[1] == 0
assert ctypes.string_at(pages.address, 3) == b"old"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no fork")
def test_a_child_process_has_a_copy():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 10_000])
def test_pages_are_zeroed_and_begin_at_a_page(nbytes):
    pages = Pages(nbytes)
    assert pages.nbytes == nbytes
    assert pages.address % 4096 == 0
    assert pages.address == pages.pointer.value
    assert not any(pages.view)
