"""JAX's device memory profile, read without Go: which code made how many of the bytes that each device holds.

The profile is a gzipped message of pprof (https://github.com/google/pprof/blob/main/proto/profile.proto); the messages
below are the part of it that JAX fills.
"""

import gzip
from dataclasses import dataclass
from typing import Any

import jax
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_INTEGER, _STRING, _MESSAGE = 3, 9, 11
"""Types of a field: TYPE_INT64, TYPE_STRING, TYPE_MESSAGE."""
_MESSAGES: dict[str, list[tuple[str, int, int | str]]] = {
    "Profile": [
        ("sample", 2, "Sample"),
        ("location", 4, "Location"),
        ("function", 5, "Function"),
        ("string_table", 6, _STRING),
    ],
    "Sample": [("location_id", 1, _INTEGER), ("value", 2, _INTEGER), ("label", 3, "Label")],
    "Label": [("key", 1, _INTEGER), ("str", 2, _INTEGER)],
    "Location": [("id", 1, _INTEGER), ("line", 4, "Line")],
    "Line": [("function_id", 1, _INTEGER), ("line", 2, _INTEGER)],
    "Function": [("id", 1, _INTEGER), ("name", 2, _INTEGER), ("filename", 4, _INTEGER)],
}
_SINGLE = {"key", "str", "id", "function_id", "name", "filename", "Line.line"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Living buffers of one device that one stack of calls made."""

    device: int
    num_bytes: int
    stack: tuple[tuple[str, str], ...]
    """(function, file) of each call, the innermost first."""


def allocations() -> list[Allocation]:
    """All living buffers of this process, by device and by the stack that made them."""
    profile = _profile_type()()
    profile.ParseFromString(gzip.decompress(jax.profiler.device_memory_profile()))
    text = profile.string_table
    functions = {f.id: (text[f.name], text[f.filename]) for f in profile.function}
    calls = {place.id: [functions[line.function_id] for line in place.line] for place in profile.location}
    found = []
    for sample in profile.sample:
        labels = {text[label.key]: text[label.str] for label in sample.label}
        if labels["kind"] == "buffer":
            stack = tuple(call for place in sample.location_id for call in calls[place])
            device = int(labels["device"].rsplit(":", 1)[-1])
            found.append(Allocation(device=device, num_bytes=sample.value[1], stack=stack))
    return found


def _profile_type() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            one = field in _SINGLE or f"{name}.{field}" in _SINGLE
            added = message.field.add(name=field, number=number, label=1 if one else 3)
            if isinstance(kind, int):
                added.type = kind
            else:
                added.type, added.type_name = _MESSAGE, f".perftools.profiles.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))
