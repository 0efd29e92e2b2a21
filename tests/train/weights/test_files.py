"""Published files: round trips, layouts, several files, what is refused, and what a write leaves behind."""

import json
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file
from tests.train.small_gpt import gpt2_config, program_of, random_params

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights import place, read, write
from shardwise.train.weights.safetensors_file import replacing

Weights = dict[str, NDArray[Any]]
HostParams = dict[str, NDArray[Any]]
MIB = 1 << 20


def on_host(params: Mapping[str, jax.Array]) -> HostParams:
    """Parameters as numpy arrays."""
    return {path: np.asarray(array) for path, array in params.items()}


def in_full(path: Path) -> HostParams:
    """All parameters of a published model, whole."""
    _, parameters = read(path)
    return {name: stored[tuple(slice(None) for _ in stored.shape)] for name, stored in parameters}


def same_bits(one: HostParams, other: HostParams) -> bool:
    """Whether two sets of arrays have the same names, dtypes and bytes."""
    return one.keys() == other.keys() and all(
        one[path].dtype == other[path].dtype and one[path].tobytes() == other[path].tobytes() for path in one
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_a_round_trip_keeps_every_bit(
    family: str,
    dtype: str,
    small: Mapping[str, GptConfig],
    tmp_path: Path,
) -> None:
    """Parameters split over 4 devices, exported and placed again on 8, are the same bits, and so is a second file."""
    program = program_of(small[family], devices=4, mesh={"tensor": 2}, precision={"params": dtype})
    params = on_host(random_params(program))
    write(tmp_path / "a.safetensors", program.config, params.items())
    other = program_of(small[family], devices=8, mesh={"tensor": 4}, precision={"params": dtype})
    placed = place(other, *read(tmp_path / "a.safetensors"))
    assert same_bits(on_host(placed), params)
    write(tmp_path / "b.safetensors", program.config, reversed(params.items()))
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_an_import_exported_again_is_the_published_model(
    family: str, published: Callable[[str], Weights], hf_configs: Mapping[str, Any], save: Callable[..., Path]
) -> None:
    """File to parameters to file gives every published tensor back, bit by bit, under its full name."""
    weights = published(family)
    source = save(weights, hf_configs[family])
    config, _ = read(source)
    target = source.parent.parent / "again.safetensors"
    write(target, config, in_full(source).items())
    again = load_file(target)
    assert {name for name in again if not name.startswith(("transformer.", "lm_head."))} == set()
    assert same_bits({name.removeprefix("transformer."): array for name, array in again.items()}, weights)


def test_names_may_have_a_prefix(
    published: Callable[[str], Weights], hf_configs: Mapping[str, Any], save: Callable[..., Path]
) -> None:
    """A model saved from inside a larger one, all names under "transformer.", is the same model."""
    weights = published("gpt2")
    prefixed = {f"transformer.{name}": array for name, array in weights.items()}
    plain = save(weights, hf_configs["gpt2"], "plain")
    assert same_bits(in_full(save(prefixed, hf_configs["gpt2"], "prefixed")), in_full(plain))


def test_every_device_gets_its_slices_in_the_parameter_dtype(
    published: Callable[[str], Weights],
    hf_configs: Mapping[str, Any],
    save: Callable[..., Path],
) -> None:
    """Parameters have the layout's shardings and the job's dtype, whatever dtype the file has."""
    config, parameters = read(save(published("gptj"), hf_configs["gptj"]))
    program = program_of(config, devices=4, mesh={"tensor": 2}, precision={"params": "bfloat16"})
    placed = place(program, config, parameters)
    assert {path: array.sharding for path, array in placed.items()} == program.shardings()["params"]
    assert {array.dtype for array in placed.values()} == {jnp.dtype("bfloat16")}
    table = published("gptj")["wte.weight"]
    padded = np.pad(table, ((0, 128 - 70), (0, 0))).astype(jnp.dtype("bfloat16")).T
    assert np.asarray(placed["token_embedding"]).tobytes() == padded.tobytes()


def test_tensors_of_two_narrow_dtypes_are_read_exactly(
    published: Callable[[str], Weights], hf_configs: Mapping[str, Any], save: Callable[..., Path]
) -> None:
    """Neither float16 nor bfloat16 holds the other: a parameter that is made of both is read as float32."""
    weights = published("gpt2")
    dtypes = {name: "float16" if name.startswith("h.0.") else "bfloat16" for name in weights}
    mixed = {name: array.astype(jnp.dtype(dtypes[name])) for name, array in weights.items()}
    wide = {name: array.astype(np.float32) for name, array in mixed.items()}
    found = in_full(save(mixed, hf_configs["gpt2"], "mixed"))
    expected = in_full(save(wide, hf_configs["gpt2"], "wide"))
    stacked = {path: array for path, array in found.items() if array.dtype != jnp.dtype("bfloat16")}
    assert stacked
    assert same_bits(stacked, {path: expected[path] for path in stacked})


def test_a_slice_is_read_alone(
    published: Callable[[str], Weights], hf_configs: Mapping[str, Any], save: Callable[..., Path]
) -> None:
    """Any box of a stored parameter equals the same box of the whole, across layers, heads and padding."""
    _, parameters = read(save(published("gptj"), hf_configs["gptj"]))
    stored = dict(parameters)
    qkv = stored["blocks.attention.qkv.weight"]
    whole = qkv[tuple(slice(None) for _ in qkv.shape)]
    box = (slice(1, 3), slice(8, 16), slice(1, 3), slice(2, 4), slice(None))
    assert np.array_equal(qkv[box], whole[box])
    assert (stored["token_embedding"][slice(0, 4), slice(60, 80)][:, 10:] == 0).all()


def test_a_model_of_several_files_is_one_model(
    published: Callable[[str], Weights], hf_configs: Mapping[str, Any], save: Callable[..., Path], tmp_path: Path
) -> None:
    """An index and its files, given by its path or by its folder, read as the single file does."""
    weights = published("gpt2")
    whole = in_full(save(weights, hf_configs["gpt2"], "whole"))
    names = sorted(weights)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    folder = tmp_path / "parts"
    for file, inside in parts.items():
        save({name: weights[name] for name in inside}, hf_configs["gpt2"], "parts")
        (folder / "model.safetensors").rename(folder / file)
    places = {name: file for file, inside in parts.items() for name in inside}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    assert same_bits(in_full(index), whole)
    assert same_bits(in_full(folder), whole)
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(DataError, match=r"model-2\.safetensors: cannot be read"):
        read(folder)


def test_an_index_names_files_of_its_own_folder_only(tmp_path: Path) -> None:
    """An index that points elsewhere is refused before anything there is opened."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"wte.weight": "../secret.safetensors"}}), encoding="utf-8")
    with pytest.raises(DataError, match=r"expected files of the same folder"):
        read(index)
    index.write_text("[" * 3000, encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read"):
        read(index)


def test_masks_and_a_tied_head_are_not_weights(
    published: Callable[[str], Weights], hf_configs: Mapping[str, Any], save: Callable[..., Path]
) -> None:
    """Buffers of any dtype and a head equal to the token table change nothing."""
    weights = published("gpt2")
    extra: Weights = {f"h.{layer}.attn.bias": np.tril(np.ones((1, 1, 16, 16), np.bool_)) for layer in range(3)}
    extra |= {"h.0.attn.masked_bias": np.array(-1e4, np.float32), "lm_head.weight": weights["wte.weight"]}
    assert same_bits(
        in_full(save({**weights, **extra}, hf_configs["gpt2"])), in_full(save(weights, hf_configs["gpt2"], "plain"))
    )


REFUSED: list[tuple[str, Callable[[Weights], Weights], str]] = [
    ("gpt2", lambda w: w | {"lm_head.weight": w["wte.weight"] + 1}, r"lm_head\.weight: .*same values as wte\.weight"),
    ("gpt2", lambda w: w | {"lm_head.weight": w["wte.weight"][:9]}, r"lm_head\.weight: given shape \(9, 32\)"),
    ("gpt2", lambda w: without(w, "h.1.ln_2.bias"), r"h\.1\.ln_2\.bias: missing; expected shape \(32,\)"),
    ("gpt2", lambda w: without(w, "wte.weight"), r"wte\.weight: missing"),
    ("gptj", lambda w: without(w, "lm_head.bias"), r"lm_head\.bias: missing; expected shape \(70,\)"),
    ("gpt2", lambda w: w | {"h.0.attn.c_proj.bias": np.zeros(5, np.float32)}, r"given shape \(5,\), expected \(32,\)"),
    ("gpt2", lambda w: w | {"score.weight": np.zeros(5, np.float32)}, r"score\.weight: given shape \(5,\), .* no such"),
    ("gpt2", lambda w: w | {"transformer.wte.weight": w["wte.weight"]}, r"has both transformer\.wte\.weight and wte"),
    ("gpt2", lambda w: w | {"ln_f.bias": np.zeros(32, np.float64)}, r"ln_f\.bias has dtype F64, expected one of F32"),
    ("gpt2", lambda w: {"model.embed_tokens.weight": w["wte.weight"]}, r"no known family.*c_attn.*q_proj"),
]


def without(weights: Weights, name: str) -> Weights:
    """All tensors but one."""
    return {key: array for key, array in weights.items() if key != name}


@pytest.mark.parametrize(("family", "change", "words"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(
    family: str,
    change: Callable[[Weights], Weights],
    words: str,
    published: Callable[[str], Weights],
    hf_configs: Mapping[str, Any],
    save: Callable[..., Path],
) -> None:
    """Unknown, missing, misshapen and untied tensors: the error names the tensor, both shapes and what to do."""
    path = save(change(published(family)), hf_configs[family])
    with pytest.raises(DataError, match=words):
        in_full(path)


def nested(_: bytes) -> bytes:
    """A table that is far too deep."""
    return (3000).to_bytes(8, "little") + b"[" * 3000


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:40], lambda b: b[:0], lambda b: b"\xff" + b, nested])
def test_a_damaged_file_is_refused(
    damage: Callable[[bytes], bytes], published: Callable[[str], Weights], save: Callable[..., Path]
) -> None:
    """A file that is cut short, empty or something else is no safetensors file, and the error says so."""
    path = save(published("gpt2"), None)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"is not a whole safetensors file"):
        read(path)


def test_a_job_with_another_model_is_refused_by_field(
    published: Callable[[str], Weights],
    hf_configs: Mapping[str, Any],
    save: Callable[..., Path],
) -> None:
    """Heads, which no shape shows, and every other field that differs are named with both values."""
    config, parameters = read(save(published("gpt2"), hf_configs["gpt2"]))
    with pytest.raises(DataError, match=r"(?s)model\.heads: the job has 8, the weights have 4.*seqLen: the job has 12"):
        place(program_of(gpt2_config(num_heads=8, seq_len=12)), config, parameters)


def test_the_format_is_what_its_own_library_reads(small: Mapping[str, GptConfig], tmp_path: Path) -> None:
    """The library opens an export, finds the mark that loaders ask for, and every byte aligned."""
    program = program_of(small["gpt2"])
    path = tmp_path / "model.safetensors"
    write(path, program.config, on_host(random_params(program)).items())
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_slice("transformer.h.2.attn.c_attn.weight").get_shape() == [32, 96]
        assert file.get_slice("transformer.wte.weight").get_shape() == [70, 32]
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_a_failed_write_leaves_the_old_file(small: Mapping[str, GptConfig], tmp_path: Path) -> None:
    """A write that ends half-way changes nothing and leaves nothing behind, nor a config.json without its weights."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")

    def broken() -> Iterator[tuple[str, NDArray[Any]]]:
        yield "norm.weight", np.ones(32, np.float32)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(path, small["gpt2"], broken())
    assert path.read_bytes() == b"old"
    assert {file.name for file in tmp_path.iterdir()} == {"model.safetensors"}


OTHERS = [
    ("{}", "nothing of this one"),
    ("no JSON", "nothing of this one"),
    ('{"model_type": "gpt2", "n_layer": 12, "n_embd": 768}', "n_embd is 768, not 32, n_layer is 12, not 3"),
]


@pytest.mark.parametrize(("there", "wrong"), OTHERS)
def test_a_folder_of_another_model_is_not_written_to(
    small: Mapping[str, GptConfig], tmp_path: Path, there: str, wrong: str
) -> None:
    """A config.json that says something else is never overwritten, and no weights come beside it."""
    (tmp_path / "config.json").write_text(there, encoding="utf-8")
    with pytest.raises(DataError, match=rf"describes another model \({wrong}\); export into a folder of its own"):
        write(tmp_path / "model.safetensors", small["gpt2"], [("norm.weight", np.ones(32, np.float32))])
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == there
    assert not (tmp_path / "model.safetensors").exists()


def test_a_config_of_another_release_is_replaced(small: Mapping[str, GptConfig], tmp_path: Path) -> None:
    """It describes the same model, with a key more and one fewer: what is written is this release's."""
    program = program_of(small["gpt2"], devices=1)
    params = on_host(random_params(program))
    write(tmp_path / "model.safetensors", program.config, params.items())
    path = tmp_path / "config.json"
    text = path.read_text(encoding="utf-8")
    (left_out, _), *kept = json.loads(text).items()
    path.write_text(json.dumps({"a_key_of_then": 1, **dict(kept)}), encoding="utf-8")
    assert left_out not in path.read_text(encoding="utf-8")

    write(tmp_path / "model.safetensors", program.config, params.items())

    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_the_same_model_is_exported_again(family: str, small: Mapping[str, GptConfig], tmp_path: Path) -> None:
    """In another dtype, with the tokens and positions of a tokenizer: nothing of that makes it another model."""
    path = tmp_path / "model.safetensors"
    program = program_of(small[family], devices=1)
    params = on_host(random_params(program))
    write(path, program.config, params.items())
    known = {"bos_token_id": 1, "eos_token_id": [2, 3], **({"n_positions": 64} if family == "gptj" else {})}
    narrow = {name: array.astype(jnp.dtype("bfloat16")) for name, array in params.items()}

    write(path, replace(program.config, init_std=0.01, embed_dropout=0.1), narrow.items(), known)

    again = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    expected = {**known, "torch_dtype": "bfloat16", "initializer_range": 0.01, "embd_pdrop": 0.1}
    assert expected == {name: again[name] for name in expected}
    assert in_full(path)["norm.weight"].dtype == jnp.dtype("bfloat16")


def test_a_table_of_positions_makes_another_model(small: Mapping[str, GptConfig], tmp_path: Path) -> None:
    """Positions that are weights are no more free than layers are."""
    program = program_of(small["gpt2"], devices=1)
    params = on_host(random_params(program))
    write(tmp_path / "model.safetensors", program.config, params.items())
    with pytest.raises(DataError, match=r"another model \(n_positions is 16, not 12\)"):
        write(tmp_path / "other.safetensors", replace(program.config, seq_len=12), params.items())


UNPUBLISHED = [
    ({"position": "rotary", "rotary_dim": 4}, r"not GPT-2: position is rotary, not learned"),
    ({"tied_head": False}, r"not GPT-2: tiedHead is False, not True"),
    ({"block": "parallel"}, r"not GPT-J: position is learned, not rotary, headBias is False"),
    ({"head_size": 8, "embed_size": 33}, r"not GPT-2: embed is 33, not 32"),
    ({"head_size": 16}, r"not GPT-2: embed is 32, not 64"),
]


@pytest.mark.parametrize(("fields", "words"), UNPUBLISHED)
def test_a_model_of_no_family_cannot_be_exported(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    """The fields that make it neither GPT-2 nor GPT-J are named, and no file is made."""
    with pytest.raises(DataError, match=words):
        write(tmp_path / "model.safetensors", gpt2_config(**fields), [("norm.weight", np.ones(32, np.float32))])
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded_by_one_tensor(tmp_path: Path) -> None:
    """A read takes none of the file, a slice its own size, and a write one published tensor beside its input."""
    config = GptConfig(
        num_layers=16, num_heads=2, embed_size=128, mlp_size=2048, seq_len=16, vocab_size=4000, init_std=0.02
    )
    program = program_of(config)
    zeros = {path: np.zeros(x.shape, np.float32) for path, x in program.abstract()["params"].items()}
    assert sum(array.nbytes for array in zeros.values()) > 30 * MIB
    path = tmp_path / "model.safetensors"
    tracemalloc.start()
    try:
        write(path, config, zeros.items())
        _, write_peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        _, parameters = read(path)
        stored = dict(parameters)
        held = stored["blocks.mlp.up.weight"][slice(0, 1), slice(None), slice(None)]
        _, read_peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held.nbytes == MIB
    assert write_peak_bytes < 4 * MIB
    assert read_peak_bytes < 4 * MIB


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    """Two that write one file at once each leave it whole, the later end stays, and one that fails leaves nothing."""
    path = tmp_path / "a.safetensors"
    with replacing(path) as first:
        first.write(b"first ")
        with replacing(path) as second:
            second.write(b"second")
        with pytest.raises(ZeroDivisionError), replacing(path) as third:
            third.write(b"third" + bytes(1 // 0))
        assert path.read_bytes() == b"second"
        first.write(b"one")
    assert path.read_bytes() == b"first one"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """The half file of a process that was killed is gone after the next write of the same file."""
    path = tmp_path / "a.safetensors"
    killed = (
        "import os, signal, sys; from pathlib import Path\n"
        "from shardwise.train.weights.safetensors_file import replacing\n"
        "with replacing(Path(sys.argv[1])) as file: file.write(b'half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", killed, path], check=False).returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert left != path
    with replacing(path) as file:
        file.write(b"whole")
    assert list(tmp_path.iterdir()) == [path]
