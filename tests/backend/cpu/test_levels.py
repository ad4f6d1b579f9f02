import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend.cpu import levels
from nbxtensor.errors import MissingFactError

V3 = frozenset(levels.LEVELS["x86-64-v3"])
V4 = frozenset(levels.LEVELS["x86-64-v4"])
# Flags as Linux prints them on a Zen 4, a Haswell and a Neoverse V1 core, shortened.
ZEN4 = (
    "fpu sse sse2 ht syscall nx lm pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c lahf_lm abm bmi1 "
)
ZEN4 += "avx2 bmi2 avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16 avx512vbmi avx512_vbmi2 gfni "
ZEN4 += "avx512_vnni avx512_bitalg avx512_vpopcntdq"
HASWELL = "fpu sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm bmi1 avx2 bmi2"
NEOVERSE = "fp asimd evtstrm aes crc32 atomics fphp asimdhp asimdrdm asimddp sve asimdfhm bf16 i8mm"


def cpuinfo(*processors, name="flags"):
    return "\n".join(
        f"processor\t: {n}\nmodel name\t: flags of it\n{name}\t\t: {f}\n" for n, f in enumerate(processors)
    )


def test_real_processors():
    assert levels.level_of("x86_64", levels.flags_in(cpuinfo(ZEN4))) == "x86-64-v4"
    assert levels.level_of("x86_64", levels.flags_in(cpuinfo(HASWELL, HASWELL))) == "x86-64-v3"
    arm = levels.flags_in(cpuinfo(NEOVERSE, name="Features"))
    assert levels.level_of("aarch64", arm) == "aarch64-neon"
    assert levels.features_of("aarch64", arm) == {"dotprod", "fullfp16", "fp16fml", "bf16", "i8mm", "sve"}
    assert levels.features_of("x86_64", levels.flags_in(cpuinfo(ZEN4))) >= {"avx512bf16", "avx512vnni", "gfni"}


def test_only_what_every_processor_has_counts():
    assert levels.level_of("x86_64", levels.flags_in(cpuinfo(ZEN4, HASWELL))) == "x86-64-v3"


@given(st.sampled_from(sorted(V4)))
def test_one_missing_flag_lowers_the_level_and_is_named(missing):
    flags = V4 - {missing}
    if missing in V3:
        with pytest.raises(MissingFactError, match=f"without {missing} "):
            levels.level_of("x86_64", flags)
    else:
        assert levels.level_of("x86_64", flags) == "x86-64-v3"


def test_an_architecture_without_levels_is_refused_by_name():
    with pytest.raises(MissingFactError, match="riscv64"):
        levels.level_of("riscv64", frozenset())
    with pytest.raises(MissingFactError, match="asimd, fp"):
        levels.level_of("aarch64", frozenset())
    assert levels.flags_in("") == frozenset()


def test_this_machine_has_a_level():
    level = levels.detect()
    assert level in levels.LEVELS
    assert level.startswith(platform.machine().replace("_", "-").replace("arm64", "aarch64"))
    assert all("_" not in name for name in levels.features())
