"""The allocator against a model of a card: every byte accounted for, whatever the order of events."""

import gc
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nbxtensor import memory
from nbxtensor.backend.contract import MemoryInfo
from nbxtensor.backend.registry import backend
from nbxtensor.errors import ArgumentError, OutOfMemoryError
from nbxtensor.memory.allocator import Allocator, Storage
from nbxtensor.settings import replace


class Card:
    """Memory of ``total`` bytes that knows what is in use and refuses what it cannot hold."""

    def __init__(self, total):
        self.total = total
        self.blocks = {}
        self.next = 4096
        self.served = 0
        self.asked = 0
        self.before_allocate = lambda: None

    @property
    def used(self):
        return sum(self.blocks.values())

    def allocate(self, nbytes, alignment=64):
        self.before_allocate()
        if self.used + nbytes > self.total:
            free = self.total - self.used
            raise OutOfMemoryError(
                "card", requested=nbytes, live=0, limit=self.total, free=free, total=self.total, source="the card"
            )
        address, self.next = self.next, self.next + nbytes + alignment
        assert address % alignment == 0
        self.blocks[address] = nbytes
        self.served += 1
        return address

    def free(self, address):
        del self.blocks[address]

    def info(self):
        self.asked += 1
        return MemoryInfo(self.total - self.used, self.total)

    def fill(self, address, value, nbytes):
        raise AssertionError("nothing is filled unless poison is set")


@pytest.fixture(autouse=True)
def default_settings():
    yield
    memory.set_limit(None)
    replace(poison=False)


def rounded(nbytes):
    return max(-(-nbytes // 64), 1) * 64


sizes = st.one_of(st.integers(0, 300), st.integers(0, 20_000), st.sampled_from([0, 1, 63, 64, 65, 128, 4096]))


class Allocations(RuleBasedStateMachine):
    """Blocks are asked for, dropped, and limits come and go; the model is the card and the storages held."""

    @initialize(total=st.integers(1, 500).map(lambda n: n * 64))
    def start(self, total):
        self.card = Card(total)
        self.allocator = Allocator("card:0", self.card)
        self.held = []
        self.limit = None
        self.peak = self.requests = 0

    def teardown(self):
        memory.set_limit(None)

    @property
    def live(self):
        return sum(self.card.blocks[s.address] for s in self.held)

    @property
    def pool(self):
        taken = {s.address for s in self.held}
        return sorted(n for address, n in self.card.blocks.items() if address not in taken)

    @rule(nbytes=sizes)
    def allocate(self, nbytes):
        wanted, live, served = rounded(nbytes), self.live, self.card.served
        room = 2 * wanted if self.limit is None else min(2 * wanted, self.limit - live)
        reusable = any(wanted <= n <= room for n in self.pool)
        over_limit = self.limit is not None and live + wanted > self.limit
        if over_limit or (not reusable and live + wanted > self.card.total):
            with pytest.raises(OutOfMemoryError) as caught:
                self.allocator.allocate(nbytes)
            error = caught.value
            most = self.limit if over_limit else self.card.total
            assert (error.requested, error.live, error.limit) == (nbytes, live, most)
            free = self.card.total - self.card.used
            assert (error.pooled, error.free, error.total) == (self.card.used - live, free, self.card.total)
            for part in ("card:0", str(nbytes), str(live), "the limit set" if over_limit else "the device"):
                assert part in str(error)
            for number in (error.pooled, error.free, error.total, error.fits):
                assert str(number) in str(error)
            with pytest.raises(OutOfMemoryError):
                self.allocator.allocate(error.fits + 1)
            if error.fits:
                self.held.append(self.allocator.allocate(error.fits))
                self.requests += 1
                self.peak = max(self.peak, self.live)
            return
        storage = self.allocator.allocate(nbytes)
        assert (storage.nbytes, storage.allocator, storage.readonly) == (nbytes, self.allocator, False)
        assert self.card.blocks[storage.address] >= nbytes
        assert storage.address not in {s.address for s in self.held}
        assert (self.card.served == served) == reusable
        self.held.append(storage)
        self.requests += 1
        self.peak = max(self.peak, self.live)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data):
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @precondition(lambda self: len(self.held) > 1)
    @rule()
    def drop_all_but_one(self):
        del self.held[1:]

    @rule()
    def trim(self):
        parked = self.card.used - self.live
        assert self.allocator.trim() == parked
        assert self.card.used == self.live

    @rule()
    def reset_peak(self):
        self.allocator.reset_peak()
        self.peak = self.live

    @rule(nbytes=st.one_of(st.none(), st.integers(64, 40_000)))
    def set_limit(self, nbytes):
        self.allocator.trim()  # what is parked is measured by the limit that was in force
        memory.set_limit(nbytes)
        self.limit = nbytes

    @invariant()
    def the_numbers_are_exact(self):
        if not hasattr(self, "card"):
            return
        assert self.allocator.live == self.live
        assert self.allocator.parked == self.card.used - self.live
        assert self.allocator.peak == self.peak
        assert self.allocator.requests == self.requests
        assert self.allocator.parked <= (self.limit or self.card.total) // 4
        if self.limit is not None:
            assert self.allocator.parked == 0 or self.card.used <= self.limit

    @invariant()
    def blocks_share_no_byte(self):
        if not hasattr(self, "card"):
            return
        ranges = sorted((s.address, s.address + s.nbytes) for s in self.held)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


TestAllocations = Allocations.TestCase


def test_the_device_is_asked_for_its_size_once():
    card = Card(1 << 20)
    allocator = Allocator("card:0", card)
    for _ in range(10):
        allocator.allocate(100)
    assert card.asked == 1


def test_a_negative_size_is_refused():
    with pytest.raises(ArgumentError, match=r"allocate: .* Got -1"):
        Allocator("card:0", Card(64)).allocate(-1)


def test_a_full_device_gets_the_pool_back_before_a_request_is_refused():
    card = Card(4096)
    allocator = Allocator("card:0", card)
    allocator.allocate(1024)  # parked at once
    assert allocator.parked == 1024
    whole = allocator.allocate(4096)
    assert (allocator.parked, allocator.live, card.used) == (0, 4096, 4096)
    del whole


def test_what_is_live_and_parked_together_stays_within_the_limit():
    card = Card(1 << 20)
    allocator = Allocator("card:0", card)
    memory.set_limit(8192)
    allocator.allocate(1024)  # parked at once
    rest = allocator.allocate(7168)
    assert (allocator.parked, card.used) == (1024, 8192)
    del rest
    whole = allocator.allocate(7232)
    assert (allocator.parked, card.used) == (0, 7232)
    del whole


def test_a_parked_block_larger_than_a_lowered_limit_has_room_for_is_not_handed_out():
    card = Card(1 << 20)
    allocator = Allocator("card:0", card)
    rest = allocator.allocate(7488)
    allocator.allocate(768)
    assert allocator.parked == 768
    memory.set_limit(8192)
    small = allocator.allocate(448)
    assert (allocator.live, card.used) == (7936, 7936)
    del rest, small


def test_a_large_block_past_the_share_is_returned_to_the_device_at_once():
    card = Card(8 << 20)
    allocator = Allocator("card:0", card)
    large = allocator.allocate(4 << 20)
    del large
    assert card.used == 0


def test_few_small_blocks_wait_to_be_parked():
    card = Card(8 << 20)
    allocator = Allocator("card:0", card)
    held = [allocator.allocate(1 << 16) for _ in range(100)]
    del held[:]
    assert card.used <= (2 << 20) + 64 * (1 << 16)  # a quarter of the card, and those on their way
    assert (allocator.live, allocator.parked, card.used) == (0, 2 << 20, 2 << 20)


def test_a_block_that_came_back_goes_out_again_for_its_size_alone():
    card = Card(1 << 20)
    allocator = Allocator("card:0", card)
    first = allocator.allocate(1000).address
    assert allocator.allocate(1024).address == first
    assert allocator.allocate(2048).address != first
    assert allocator.allocate(961).address == first
    assert (allocator.live, allocator.requests, allocator.peak) == (0, 4, 2048)


def test_a_block_in_a_cycle_comes_back_when_the_cycle_is_collected():
    allocator = Allocator("card:0", Card(1 << 20))

    class Holder:
        pass

    holder = Holder()
    holder.me, holder.storage = holder, allocator.allocate(100)
    del holder
    gc.collect()
    assert allocator.live == 0


def test_a_block_that_comes_back_while_another_is_being_made_is_taken_in():
    """A collection may run inside the allocator: neither a deadlock nor a block handed out twice."""
    card = Card(1 << 20)
    allocator = Allocator("card:0", card)
    doomed = [allocator.allocate(256) for _ in range(3)]
    card.before_allocate = doomed.clear
    kept = allocator.allocate(4096)
    assert not doomed
    assert (allocator.live, allocator.parked) == (4096, 3 * 256)
    card.before_allocate = lambda: None
    again = [allocator.allocate(256) for _ in range(3)]
    assert len({s.address for s in (*again, kept)}) == 4


def test_a_block_that_comes_back_during_a_refusal_is_taken_in():
    card = Card(1024)
    allocator = Allocator("card:0", card)
    doomed = [allocator.allocate(512)]
    card.before_allocate = doomed.clear
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(1024)
    assert allocator.live == 0
    assert allocator.allocate(1024).nbytes == 1024


def test_foreign_memory_is_left_to_its_owner():
    card = Card(1 << 20)
    allocator = Allocator("card:0", card)
    block = allocator.allocate(1000)
    inner = Storage(block.address + 64, 100, allocator, block)
    array = np.zeros(4)
    outer = Storage(array.ctypes.data, array.nbytes, None, array)
    del inner, outer
    assert allocator.live == 1024
    del block
    assert allocator.live == 0


def test_fresh_and_reused_memory_is_poisoned_where_set():
    allocator = Allocator("cpu:0", backend("cpu").memory(0))
    replace(poison=True)
    for value in (1, 2):
        storage = allocator.allocate(1000)
        view = allocator.memory.view(storage.address, storage.nbytes)
        assert bytes(view) == b"\xff" * 1000
        view[:] = bytes([value]) * 1000
        del view, storage
    assert allocator.requests == 2


def test_memory_is_not_filled_where_poison_is_not_set():
    allocator = Allocator("cpu:0", backend("cpu").memory(0))
    storage = allocator.allocate(1000)
    address = storage.address
    allocator.memory.view(address, 1000)[:] = b"\x07" * 1000
    del storage
    again = allocator.allocate(1000)
    assert again.address == address
    assert bytes(allocator.memory.view(address, 1000)) == b"\x07" * 1000


def test_threads_never_share_a_block():
    allocator = Allocator("cpu:0", backend("cpu").memory(0))
    clashes = []

    def work(number):
        rng = np.random.default_rng(number)
        held = []
        for step in range(300):
            storage = allocator.allocate(int(rng.integers(1, 2000)))
            allocator.memory.fill(storage.address, number, storage.nbytes)
            held.append(storage)
            if step % 3:
                other = held.pop(int(rng.integers(len(held))))
                if bytes(allocator.memory.view(other.address, other.nbytes)) != bytes([number]) * other.nbytes:
                    clashes.append((number, step))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert (allocator.live, allocator.requests) == (0, 1200)
    allocator.trim()
    assert allocator.parked == 0


FORK = """
import os, threading
from nbxtensor.backend.registry import backend
from nbxtensor.memory.allocator import Allocator
allocator = Allocator("cpu:0", backend("cpu").memory(0))
inside, done = threading.Event(), threading.Event()
def hold():
    with allocator._lock:
        inside.set()
        done.wait()
threading.Thread(target=hold, daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    allocator.allocate(100)
    os._exit(0 if allocator.live == 0 else 1)
done.set()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_process_allocates_although_a_thread_of_the_parent_held_the_lock():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
