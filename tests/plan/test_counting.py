"""What a plan counts in a compiled program is what a person counts in the program's text."""

import json

import pytest
from tests.plan.compiling import beside_compilers, small
from tests.plan.counting import AXES, TRIPS

from shardwise.job.load import dump
from shardwise.plan.collectives import collectives
from shardwise.plan.hlo import parse

_KIB = 1 << 10
_OUTER, _INNER = (AXES["outer"] - 1) / AXES["outer"], (AXES["inner"] - 1) / AXES["inner"]
_BY_HAND = {
    # each trip gathers [1024, 1024] and [512, 1024] of bfloat16, of which a device has a fourth
    ("all-gather", "outer"): TRIPS * (2048 + 1024) * _KIB * _OUTER,
    # [1024, 1024] of float32, of which a half stays
    ("reduce-scatter", "inner"): 4096 * _KIB * _INNER,
    # that half, from and to all eight devices
    ("all-reduce", "outer+inner"): 2 * 2048 * _KIB * 7 / 8,
    # [1024, 1024] of bfloat16, as it is
    ("collective-permute", "outer"): 2048 * _KIB,
}
"""Bytes that a device sends, as a ring does."""


@pytest.mark.parametrize(("accelerator", "topology"), [("tpu-v5e", "2x4"), ("tpu-v5p", "2x2x2"), ("gpu-h100", "1x8")])
def test_bytes_are_those_counted_by_hand(accelerator: str, topology: str) -> None:
    """Of each kind over each axis, with a loop's as often as it turns, whatever the compiler combined or cut up."""
    job = small(accelerator, topology)

    said = beside_compilers("tests.plan.counting", dump(job), job)

    assert said.returncode == 0, said.stderr
    rows = json.loads(said.stdout.splitlines()[-1])
    counted: dict[tuple[str, str], float] = {}
    for row in rows:
        place = row["kind"], "+".join(row["axes"])
        counted[place] = counted.get(place, 0.0) + row["wire_bytes"]
    assert counted == _BY_HAND


@pytest.mark.parametrize("pairs", ["{}", "{{0,0}}", "{{3,3},{5,5}}"])
def test_what_nobody_sends_is_not_counted(pairs: str) -> None:
    """A permutation without pairs, or of devices with themselves, moves nothing; compilers leave such ones."""
    permutation = f"f32[8]{{0}} collective-permute(f32[8]{{0}} %x), channel_id=1, source_target_pairs={pairs}"
    lines = (
        "ENTRY %main (x: f32[8]) -> f32[8] {",
        "  %x = f32[8]{0} parameter(0)",
        f"  ROOT %moved = {permutation}",
        "}",
    )
    text = "\n".join(lines)
    assert [*collectives(parse(text), AXES)] == []
    assert len([*collectives(parse(text.replace(pairs, "{{0,1}}")), AXES)]) == 1
