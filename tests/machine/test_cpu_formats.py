"""Which half-precision formats a CPU has, from what Linux says of it."""

import pytest

from modules.machine.cpu_formats import cpu_formats


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu avx2 f16c avx512f avx512_bf16", {"bf16"}),
        ("flags\t\t: fpu avx512_bf16 avx512_fp16 amx_tile", {"bf16", "fp16"}),
        ("flags\t\t: fpu avx2 f16c", set()),
        ("Features\t: fp asimd asimdhp bf16", {"bf16", "fp16"}),
    ],
)
def test_the_formats_follow_from_the_flags(tmp_path, line, expected):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\npower management:\n", encoding="ascii")
    assert cpu_formats(tmp_path) == expected


def test_without_flags_they_are_unknown(tmp_path):
    assert cpu_formats(tmp_path) is None
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n", encoding="ascii")
    assert cpu_formats(tmp_path) is None
