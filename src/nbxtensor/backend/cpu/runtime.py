"""The native loops that run launch tables, on one thread or on a team that sleeps between jobs, as LLVM IR."""

from __future__ import annotations

import platform

from nbxtensor.errors import UnsupportedError

__all__ = [
    "CONDITION_CALLS",
    "CUTS",
    "FUTEX_CALLS",
    "HEADER_WORDS",
    "STATE_CALLS",
    "STATE_COND",
    "STATE_MUTEX",
    "STATE_SCRATCH",
    "STATE_WORKERS",
    "SYMBOLS",
    "has_futex",
    "runtime_text",
]

# A launch table is a run of 8-byte words, the same wherever it lies in memory:
#   records, bytes per record, workers, 0
#   per record: code, offset of its arguments from the table's start, gx, gy, barrier, cut 0 ... cut `workers`
#   the arguments of all records
# Worker w runs the programs cut[w] .. cut[w+1]-1 of each record, and waits for the others after a record whose
# `barrier` is 1.
HEADER_WORDS = 4
CUTS = 5

# Byte offsets into the state of a team; a word that several threads write has a cache line of its own.
_TABLE = 0
STATE_WORKERS = 8
_QUIT = 16
STATE_CALLS = 24
_JOB = 64
_REMAINING = 128
_ARRIVED = 192
_GENERATION = 256
STATE_MUTEX = 320
STATE_COND = 448
STATE_SCRATCH = 576

# Functions of the C library whose addresses stand at STATE_CALLS, in this order.
FUTEX_CALLS = ("syscall",)
CONDITION_CALLS = ("pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_broadcast")

SYMBOLS = ("nbx_inline", "nbx_inline_timed", "nbx_team", "nbx_team_timed", "nbx_worker", "nbx_stop")

_FUTEX = {"x86_64": 202, "aarch64": 98}  # number of the system call, from Linux's own tables
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE with FUTEX_PRIVATE_FLAG, from linux/futex.h
_MONOTONIC = {"Linux": 1, "Darwin": 6}  # CLOCK_MONOTONIC, from time.h


def has_futex() -> bool:
    """Return whether threads of this system can sleep on a word of memory (Linux on x86-64 or AArch64)."""
    return platform.system() == "Linux" and platform.machine() in _FUTEX


def runtime_text(*, futex: bool) -> str:
    """Return the LLVM IR of the runtime for this system: a module that defines `SYMBOLS`.

    Args:
        futex: Whether threads sleep on a futex; otherwise on a POSIX condition variable.

    Raises:
        UnsupportedError: The system's monotonic clock, or its futex, is not known.
    """
    system, machine = platform.system(), platform.machine()
    if system not in _MONOTONIC:
        raise UnsupportedError(f"cpu: no monotonic clock is known. Got {system}. {', '.join(_MONOTONIC)} are known.")
    if futex and not has_futex():
        raise UnsupportedError(f"cpu: no futex is known. Got {system} {machine}. Linux on {', '.join(_FUTEX)} has it.")
    sleep = _futex(_FUTEX[machine]) if futex else _CONDITION
    parts = (_now(_MONOTONIC[system]), sleep, _BARRIER, _walk(timed=False), _walk(timed=True), _INLINE, _WORKER, _STOP)
    return "".join((*parts, _team(timed=False), _team(timed=True)))


def _futex(number: int) -> str:
    syscall = "call i64 (i64, ...) %syscall(i64"
    return f"""
define internal void @await(ptr %state, ptr %word, i32 %seen) {{
entry:
  %syscall_at = getelementptr i8, ptr %state, i64 {STATE_CALLS}
  %syscall = load ptr, ptr %syscall_at
  %expected = zext i32 %seen to i64
  br label %look
look:
  %value = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %value, %seen
  br i1 %same, label %sleep, label %done
sleep:
  %ignored = {syscall} {number}, ptr %word, i64 {_WAIT}, i64 %expected, ptr null, ptr null, i64 0)
  br label %look
done:
  ret void
}}

define internal void @wake(ptr %state, ptr %word) {{
entry:
  %syscall_at = getelementptr i8, ptr %state, i64 {STATE_CALLS}
  %syscall = load ptr, ptr %syscall_at
  %ignored = {syscall} {number}, ptr %word, i64 {_WAKE}, i64 2147483647, ptr null, ptr null, i64 0)
  ret void
}}
"""


# A waiter looks at the word under the lock, and a waker takes the lock after it has changed the word: no wake is lost.
_CONDITION = f"""
define internal void @await(ptr %state, ptr %word, i32 %seen) {{
entry:
  %mutex = getelementptr i8, ptr %state, i64 {STATE_MUTEX}
  %cond = getelementptr i8, ptr %state, i64 {STATE_COND}
  %lock_at = getelementptr i8, ptr %state, i64 {STATE_CALLS}
  %lock = load ptr, ptr %lock_at
  %unlock_at = getelementptr i8, ptr %state, i64 {STATE_CALLS + 8}
  %unlock = load ptr, ptr %unlock_at
  %wait_at = getelementptr i8, ptr %state, i64 {STATE_CALLS + 16}
  %wait = load ptr, ptr %wait_at
  %locked = call i32 %lock(ptr %mutex)
  br label %look
look:
  %value = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %value, %seen
  br i1 %same, label %sleep, label %done
sleep:
  %ignored = call i32 %wait(ptr %cond, ptr %mutex)
  br label %look
done:
  %unlocked = call i32 %unlock(ptr %mutex)
  ret void
}}

define internal void @wake(ptr %state, ptr %word) {{
entry:
  %mutex = getelementptr i8, ptr %state, i64 {STATE_MUTEX}
  %cond = getelementptr i8, ptr %state, i64 {STATE_COND}
  %lock_at = getelementptr i8, ptr %state, i64 {STATE_CALLS}
  %lock = load ptr, ptr %lock_at
  %unlock_at = getelementptr i8, ptr %state, i64 {STATE_CALLS + 8}
  %unlock = load ptr, ptr %unlock_at
  %broadcast_at = getelementptr i8, ptr %state, i64 {STATE_CALLS + 24}
  %broadcast = load ptr, ptr %broadcast_at
  %locked = call i32 %lock(ptr %mutex)
  %woken = call i32 %broadcast(ptr %cond)
  %unlocked = call i32 %unlock(ptr %mutex)
  ret void
}}
"""

# The generation cannot advance between its load and this thread's arrival, so a sleeper never misses its round.
_BARRIER = f"""
define internal void @barrier(ptr %state) {{
entry:
  %workers_at = getelementptr i8, ptr %state, i64 {STATE_WORKERS}
  %workers = load i64, ptr %workers_at
  %generation = getelementptr i8, ptr %state, i64 {_GENERATION}
  %arrived = getelementptr i8, ptr %state, i64 {_ARRIVED}
  %round = load atomic i32, ptr %generation acquire, align 4
  %before = atomicrmw add ptr %arrived, i32 1 acq_rel
  %wide = zext i32 %before to i64
  %count = add i64 %wide, 1
  %last = icmp eq i64 %count, %workers
  br i1 %last, label %open, label %sleep
open:
  store atomic i32 0, ptr %arrived monotonic, align 4
  %old = atomicrmw add ptr %generation, i32 1 release
  call void @wake(ptr %state, ptr %generation)
  ret void
sleep:
  call void @await(ptr %state, ptr %generation, i32 %round)
  ret void
}}
"""


def _now(clock: int) -> str:
    return f"""
define internal i64 @now(ptr %clock) {{
entry:
  %time = alloca [2 x i64], align 16
  %ignored = call i32 %clock(i32 {clock}, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %total = add i64 %scaled, %rest
  ret i64 %total
}}
"""


def _walk(*, timed: bool) -> str:
    """Run the programs between two cuts of every record; with a state, meet the others at the barriers.

    The timed form also writes the clock before the first record and after each one.
    """
    name, more, start, stamp = "walk", "", "", ""
    if timed:
        name, more = "walk_timed", ", ptr %times, ptr %clock"
        start = "\n  %started = call i64 @now(ptr %clock)\n  store i64 %started, ptr %times"
        stamp = (
            "\n  %stamp = call i64 @now(ptr %clock)\n  %stamp_at = getelementptr i64, ptr %times, i64 %next"
            "\n  store i64 %stamp, ptr %stamp_at"
        )
    return f"""
define internal void @{name}(ptr %table, ptr %scratch, i64 %first, i64 %last, ptr %state{more}) {{
entry:
  %records = load i64, ptr %table
  %stride_at = getelementptr i64, ptr %table, i64 1
  %stride = load i64, ptr %stride_at
  %begin = getelementptr i64, ptr %table, i64 {HEADER_WORDS}
  %alone = icmp eq ptr %state, null{start}
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %latch]
  %some = icmp slt i64 %i, %records
  br i1 %some, label %body, label %done
body:
  %skipped = mul i64 %i, %stride
  %record = getelementptr i8, ptr %begin, i64 %skipped
  %cuts = getelementptr i64, ptr %record, i64 {CUTS}
  %lo_at = getelementptr i64, ptr %cuts, i64 %first
  %lo = load i64, ptr %lo_at
  %hi_at = getelementptr i64, ptr %cuts, i64 %last
  %hi = load i64, ptr %hi_at
  %mine = icmp slt i64 %lo, %hi
  br i1 %mine, label %work, label %meet
work:
  %code = load ptr, ptr %record
  %offset_at = getelementptr i64, ptr %record, i64 1
  %offset = load i64, ptr %offset_at
  %arguments = getelementptr i8, ptr %table, i64 %offset
  %gx_at = getelementptr i64, ptr %record, i64 2
  %gx = load i64, ptr %gx_at
  %gy_at = getelementptr i64, ptr %record, i64 3
  %gy = load i64, ptr %gy_at
  call void %code(ptr %arguments, ptr %scratch, i64 %lo, i64 %hi, i64 %gx, i64 %gy)
  br label %meet
meet:
  %flag_at = getelementptr i64, ptr %record, i64 4
  %flag = load i64, ptr %flag_at
  %none = icmp eq i64 %flag, 0
  %pass = or i1 %none, %alone
  br i1 %pass, label %latch, label %wait
wait:
  call void @barrier(ptr %state)
  br label %latch
latch:
  %next = add i64 %i, 1{stamp}
  br label %head
done:
  ret void
}}
"""


# One thread runs every worker's share, from the first cut to the last.
_INLINE = """
define void @nbx_inline(ptr %table, ptr %scratch) {
entry:
  %workers_at = getelementptr i64, ptr %table, i64 2
  %workers = load i64, ptr %workers_at
  call void @walk(ptr %table, ptr %scratch, i64 0, i64 %workers, ptr null)
  ret void
}

define void @nbx_inline_timed(ptr %table, ptr %scratch, ptr %times, ptr %clock) {
entry:
  %workers_at = getelementptr i64, ptr %table, i64 2
  %workers = load i64, ptr %workers_at
  call void @walk_timed(ptr %table, ptr %scratch, i64 0, i64 %workers, ptr null, ptr %times, ptr %clock)
  ret void
}
"""


def _team(*, timed: bool) -> str:
    """Publish a table to the workers, run the first worker's share, and wait for the others."""
    name, walk, more, finish = "nbx_team", "walk", "", ""
    if timed:
        name, walk, more = "nbx_team_timed", "walk_timed", ", ptr %times, ptr %clock"
        finish = (
            "\n  %records = load i64, ptr %table\n  %end = call i64 @now(ptr %clock)"
            "\n  %end_at = getelementptr i64, ptr %times, i64 %records\n  store i64 %end, ptr %end_at"
        )
    return f"""
define void @{name}(ptr %state, ptr %table{more}) {{
entry:
  %workers_at = getelementptr i8, ptr %state, i64 {STATE_WORKERS}
  %workers = load i64, ptr %workers_at
  %count = trunc i64 %workers to i32
  %others = sub i32 %count, 1
  %table_at = getelementptr i8, ptr %state, i64 {_TABLE}
  store ptr %table, ptr %table_at
  %remaining = getelementptr i8, ptr %state, i64 {_REMAINING}
  store atomic i32 %others, ptr %remaining monotonic, align 4
  %job = getelementptr i8, ptr %state, i64 {_JOB}
  %old = atomicrmw add ptr %job, i32 1 release
  call void @wake(ptr %state, ptr %job)
  %scratch_at = getelementptr i8, ptr %state, i64 {STATE_SCRATCH}
  %scratch = load ptr, ptr %scratch_at
  call void @{walk}(ptr %table, ptr %scratch, i64 0, i64 1, ptr %state{more})
  br label %join
join:
  %left = load atomic i32, ptr %remaining acquire, align 4
  %all = icmp eq i32 %left, 0
  br i1 %all, label %done, label %sleep
sleep:
  call void @await(ptr %state, ptr %remaining, i32 %left)
  br label %join
done:{finish}
  ret void
}}
"""


_WORKER = f"""
define void @nbx_worker(ptr %state, i64 %worker) {{
entry:
  %job = getelementptr i8, ptr %state, i64 {_JOB}
  %remaining = getelementptr i8, ptr %state, i64 {_REMAINING}
  %quit_at = getelementptr i8, ptr %state, i64 {_QUIT}
  %table_at = getelementptr i8, ptr %state, i64 {_TABLE}
  %scratches = getelementptr i8, ptr %state, i64 {STATE_SCRATCH}
  %scratch_at = getelementptr ptr, ptr %scratches, i64 %worker
  %following = add i64 %worker, 1
  br label %idle
idle:
  %seen = phi i32 [0, %entry], [%now, %work], [%now, %tell]
  call void @await(ptr %state, ptr %job, i32 %seen)
  %now = load atomic i32, ptr %job acquire, align 4
  %quit = load i64, ptr %quit_at
  %stay = icmp eq i64 %quit, 0
  br i1 %stay, label %work, label %done
work:
  %table = load ptr, ptr %table_at
  %scratch = load ptr, ptr %scratch_at
  call void @walk(ptr %table, ptr %scratch, i64 %worker, i64 %following, ptr %state)
  %before = atomicrmw sub ptr %remaining, i32 1 acq_rel
  %last = icmp eq i32 %before, 1
  br i1 %last, label %tell, label %idle
tell:
  call void @wake(ptr %state, ptr %remaining)
  br label %idle
done:
  ret void
}}
"""

_STOP = f"""
define void @nbx_stop(ptr %state) {{
entry:
  %quit_at = getelementptr i8, ptr %state, i64 {_QUIT}
  store i64 1, ptr %quit_at
  %job = getelementptr i8, ptr %state, i64 {_JOB}
  %old = atomicrmw add ptr %job, i32 1 release
  call void @wake(ptr %state, ptr %job)
  ret void
}}
"""
