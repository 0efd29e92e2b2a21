"""shardwise.job.flags: options of XLA's compiler, those that are refused, and those that change what a run is."""

import pytest
from tests.job.wrong_files import QUICKSTART

from shardwise.job.accelerators import BUILT_IN, xla_flags
from shardwise.job.flags import Value, changing_bits, options, refusals, repeated
from shardwise.job.load import load
from shardwise.protocol.errors import JobError

OVERLAP = "--xla_tpu_overlap_compute_collective_tc"
FUSION = "--xla_tpu_enable_async_collective_fusion_fuse_all_gather"


@pytest.mark.parametrize(
    ("flag", "option"),
    [
        ("--xla_a", {"xla_a": True}),
        ("--xla_a=true", {"xla_a": True}),
        ("--xla_a=False", {"xla_a": False}),
        ("--xla_a=3", {"xla_a": "3"}),
        ("--xla_a=b=c", {"xla_a": "b=c"}),
        ("--xla_a=", {"xla_a": ""}),
    ],
)
def test_a_flag_is_a_name_and_a_value(flag: str, option: dict[str, Value]) -> None:
    """Truths are truths, everything else is text, and an option without a value is on."""
    assert options([flag]) == option


@pytest.mark.parametrize("on", ["", "=true", "=True", "=1", "=yes", "=t", "=Y"])
def test_no_spelling_gets_two_wrong_options_past(on: str) -> None:
    """What the compiler takes for true is true to us too, for either of the two."""
    assert [flag for flag, _ in refusals([f"{OVERLAP}{on}", FUSION])] == [OVERLAP]
    assert [flag for flag, _ in refusals([OVERLAP, f"{FUSION}{on}"])] == [OVERLAP]


def test_one_of_two_wrong_options_is_right() -> None:
    """Each may be on where the other is off or not there."""
    assert not list(refusals([OVERLAP, f"{FUSION}=false"]))
    assert not list(refusals([f"{OVERLAP}=0", FUSION]))
    assert not list(refusals([OVERLAP]))


def test_an_option_of_the_class_counts() -> None:
    """A job is refused what is wrong with an option of its class, and may turn that one off."""
    hardware = "hardware={accelerator: tpu-v5p, topology: 2x2x1}"
    with pytest.raises(JobError, match=f"together with {FUSION} it gave not-a-number"):
        load(QUICKSTART, [hardware, f"training.xlaFlags=[{OVERLAP}=true]"])
    job = load(QUICKSTART, [hardware, f"training.xlaFlags=[{OVERLAP}=true, {FUSION}=false]"])

    assert options(xla_flags(job))[FUSION.removeprefix("--")] is False


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_options_of_a_class_only_schedule(name: str) -> None:
    """No built-in class has an option that may change bits: a run goes on where its class has got another one."""
    compiler = BUILT_IN[name].spec.compiler

    assert not changing_bits(one.flag for one in (compiler.flags if compiler else ()))


def test_the_same_options_in_another_order_are_the_same_run() -> None:
    """What may change bits is sorted, and the rest left out."""
    assert changing_bits(["--xla_b", "--xla_dump_to=/x", "--xla_a=1"]) == ["--xla_a=1", "--xla_b"]


def test_an_option_counts_as_repeated_with_any_value() -> None:
    """Names are compared, not values."""
    assert repeated(["--xla_a=1", "--xla_b", "--xla_a"]) == ["--xla_a"]
