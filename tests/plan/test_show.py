"""shardwise.plan.show: a plan in the terminal."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from shardwise.plan.choice import Choice
from shardwise.plan.result import Bound, HostMemory, MemoryUse, Moved, Plan, Weight
from shardwise.plan.search import Found
from shardwise.plan.show import show
from shardwise.plan.show_search import why
from shardwise.protocol.text import GIB, size
from shardwise.train.work import Work


def _plan(inner: int, *axes: str) -> Plan:
    """A plan with one collective over these mesh axes."""
    moved = Moved(
        kind="all-reduce",
        axes=[*axes],
        link="ici",
        devices=2,
        dtype="f32",
        count=3,
        payload_bytes=1.0,
        wire_bytes=1.0,
        asynchronous=3,
        asynchronous_wire_bytes=1.0,
    )
    memory = MemoryUse(
        parameters=1, optimizer=1, gradients=1, activations=1, temporaries=1, batch=1, program=1, total=7, limit=None
    )
    return Plan(
        job="shown",
        accelerator="tpu-v5e",
        topology="4x4",
        slices=1,
        devices=16,
        mesh={"replica": 1, "data": 8, "dataInner": inner, "tensor": 2},
        attention="plain",
        remat="full",
        microbatches=1,
        xla_flags=[],
        compiled_for="hardware",
        fits=None,
        needed_bytes=7,
        limit_bytes=None,
        memory=memory,
        collectives=[moved],
    )


def test_what_lies_with_the_host_is_told() -> None:
    """Of each kind the bytes of a host, and what moves between it and a device; nothing of a job that has none."""
    held = HostMemory(state=3 << 30, activations=0, moved=1 << 30)
    text = _shown(_plan(1, "data_outer").model_copy(update={"host_memory": held}))

    assert "in the memory of each host: 3.00 GiB of state; 1.00 GiB a device and step move to it and back" in text
    assert "in the memory of each host" not in _shown(_plan(1, "data_outer"))


def _shown(plan: Plan, *, weights: bool = False) -> str:
    out = StringIO()
    show(plan, Console(file=out, width=110), weights=weights)
    return out.getvalue()


@pytest.mark.parametrize(
    ("inner", "axes", "words"),
    [
        (1, ("data_outer",), "data "),
        (1, ("replica", "data_outer", "tensor"), "replica + data + tensor "),
        (2, ("data_outer", "data_inner"), "data "),
        (2, ("data_inner",), "dataInner "),
        (2, ("data_outer",), "data / dataInner "),
    ],
)
def test_axes_have_the_names_of_a_job_file(inner: int, axes: tuple[str, ...], words: str) -> None:
    """The two mesh axes of data are its own affair: a job file has `data`, and `dataInner` as a part of it."""
    text = _shown(_plan(inner, *axes))

    assert f"all-reduce   {words}" in text
    assert "data_" not in text


def test_a_weight_has_its_axes_and_what_splits_them() -> None:
    """Its row is there if weights are asked for: the names of its axes, a device's part, and the bytes of that."""
    up = Weight(
        name="blocks.mlp.up.weight",
        axes={"layers": 4, "embed": 128, "mlp": 512},
        part=[4, 64, 256],
        split={"embed": "data", "mlp": "tensor"},
        part_bytes=262_144,
    )
    plan = _plan(1, "tensor").model_copy(update={"weights": [up]})

    row = next(line for line in _shown(plan, weights=True).splitlines() if "blocks.mlp.up" in line)
    words = "blocks.mlp.up.weight layers 4, embed 128 / data, mlp 512 / tensor 4 x 64 x 256 262,144"
    assert " ".join(row.split()) == words
    assert "blocks.mlp.up" not in _shown(plan)


def test_a_layout_is_shown_as_fields_with_their_values() -> None:
    """So one microbatch reads as well as several do, in a plan's head and among the layouts of a search."""
    choice = Choice(tensor=2, expert=None, data_inner=4, microbatches=1, remat="dots")

    assert choice.words == "tensor 2, FSDP's second step over 4, microbatches 1, remat dots"
    assert "attention plain, remat full, microbatches 1\n" in "\n".join(
        map(str.rstrip, _shown(_plan(1, "tensor")).splitlines())
    )


def test_brackets_of_a_job_are_shown_as_they_are() -> None:
    """Options of XLA and what stands in a change are a person's words, and no markup."""
    flags = ["--xla_dump_hlo_pass_re=[/a]", "--xla_other=[bold]"]
    plan = _plan(1, "tensor").model_copy(update={"xla_flags": flags, "change": "training.name=[/b]"})
    shown = _shown(plan)
    assert all(flag in shown for flag in flags)
    assert "with training.name=[/b] it does" in shown


def _found(*, memory: float, compute: float, is_own: bool) -> Found:
    """A layout with these seconds of a step, most of them of memory."""
    bound = Bound(
        seconds=memory,
        mfu=0.1,
        binds="memory",
        compute_seconds=compute,
        memory_seconds=memory,
        asynchronous_seconds={},
        synchronous_seconds={},
    )
    choice = Choice(tensor=1, expert=None, data_inner=1, microbatches=1, remat="none")
    return Found(
        choice=choice, plan=_plan(1, "tensor").model_copy(update={"fits": True, "bound": bound}), is_own=is_own
    )


@pytest.mark.parametrize(
    ("memory", "end"),
    [
        (0.8, "20% shorter than the job's own, by less reading and writing of memory (800 for 1,000 ms)."),
        (0.995, "shorter than the job's own."),
    ],
)
def test_what_a_search_gains_is_a_whole_sentence(memory: float, end: str) -> None:
    """It names memory where that is what is less, and nothing where no part alone is less."""
    best, own = (_found(memory=seconds, compute=0.5, is_own=seconds == 1.0) for seconds in (memory, 1.0))
    assert why([best, own]).endswith(end)


def test_beside_a_job_that_does_not_fit_no_time_is_compared() -> None:
    """A GPU's compiler takes a program that is too large, and has a time for it: that is no time of the job."""
    best, own = _found(memory=1.3, compute=0.5, is_own=False), _found(memory=1.0, compute=0.5, is_own=True)
    own = replace(own, plan=own.plan.model_copy(update={"fits": False}))

    assert why([best, own]) == f"The job does not fit as it is; {best.choice.words} does."


@pytest.mark.parametrize(("needed", "limit"), [(15.75, 15.75), (31.24, 31.25)])
def test_a_program_that_is_refused_by_a_hair_lacks_no_negative_memory(needed: float, limit: float) -> None:
    """XLA says what a program needs in two digits, which may be no more than there is."""
    sizes = {"needed_bytes": int(needed * GIB), "limit_bytes": int(limit * GIB), "fits": False, "refusal": "Used"}
    shown = " ".join(_shown(_plan(1, "tensor").model_copy(update=sizes)).split())

    assert f"does not fit: needs {needed} GiB of {limit} GiB a device, and the compiler finds no room for it" in shown


@pytest.mark.parametrize("needed", [31.24, 40.0])
@pytest.mark.parametrize(
    ("refused", "named"), [(Work.STEP, ""), (Work.COMPLETIONS, "the program that makes completions ")]
)
def test_a_program_beside_the_step_that_is_refused_is_named(needed: float, refused: Work, named: str) -> None:
    """The step is what a plan is of; who reads of another's bytes must know it."""
    told = {"limit_bytes": int(31.25 * GIB), "fits": False, "refusal": "Used", "refused": refused}
    plan = _plan(1, "tensor").model_copy(update=told | {"needed_bytes": int(needed * GIB)})
    shown = " ".join(_shown(plan).split())

    assert f"does not fit: {named}needs {size(plan.needed_bytes, 2)} " in shown
