"""Keep the collectives of a program in one order on all devices when XLA's CPU runtime loads it again.

XLA runs side by side what does not depend on each other, and keeps collectives in the program's order by a resource
that all of them use. A program that is written down loses a part of it: every sequence of operations (the program
itself, the body of each loop) comes back with a resource of its own, so that nothing keeps a loop with collectives and
a collective beside it in order. One device may then wait in the loop and its partner beside it, each for the other,
forever. docs/decisions/0049-order-of-kept-programs.md has the places in XLA's sources, and what was seen.

Operations that use the same memory are kept in order too. So a loop gets copies of no bytes, each from and to where a
collective beside it writes: they do nothing, and by them the loop uses that memory. They are in the sequence of the
loop's condition, which a loop with a known number of turns never runs.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_INT, _BOOL, _TEXT = _Field.TYPE_INT64, _Field.TYPE_BOOL, _Field.TYPE_STRING
_BYTE = 6  # U8 of XLA's PrimitiveType
# Of XLA's messages what is used here: {message: {field: (number, type)}}, and a list for a repeated field. Whatever
# else a message has stays in it. The sources are compile_options.proto, executable.proto, thunk.proto,
# buffer_assignment.proto and xla_data.proto.
_MESSAGES: dict[str, dict[str, tuple[int, Any]]] = {
    "Executable": {"result": (1, "Result")},
    "Result": {"sequence": (6, "Sequence")},
    "Sequence": {"thunks": (1, ["Thunk"])},
    "Thunk": {
        "kind": (1, _TEXT),
        "call": (3, "Call"),
        "conditional": (4, "Conditional"),
        "loop": (10, "Loop"),
        "copy": (12, "Copy"),
        "collective": (18, "Collective"),
    },
    "Call": {"sequence": (1, "Sequence")},
    "Conditional": {"branches": (1, ["Sequence"])},
    "Loop": {"condition": (1, "Sequence"), "body": (2, "Sequence")},
    "Copy": {"source": (1, "Buffer"), "destination": (2, "Buffer")},
    "Collective": {"buffers": (2, "Buffers")},
    "Buffers": {"destinations": (2, ["Buffer"])},
    "Buffer": {"shape": (1, "Shape"), "slice": (2, "Slice")},
    "Slice": {"offset": (1, _INT), "size": (2, _INT), "allocation": (3, _INT)},
    "Shape": {
        "element_type": (2, _INT),
        "dimensions": (3, [_INT]),
        "layout": (5, "Layout"),
        "is_dynamic": (6, [_BOOL]),
    },
    "Layout": {"minor_to_major": (1, [_INT])},
}
Message = Any
"""One of these messages."""


def in_order(serialized: bytes) -> bytes:
    """Return the serialized CPU program with all its collectives in order once it is loaded.

    Raises:
        google.protobuf.message.DecodeError: it is not in the form that this release of JAX writes.

    """
    header, executable = parsed(serialized)
    _put_in_order(executable.result.sequence)
    return bytes(header + executable.SerializeToString())


def parsed(serialized: bytes) -> tuple[bytes, Message]:
    """Return the header of a serialized CPU program, about shardings and layouts, and the message after it."""
    size, start = _varint(serialized)
    return serialized[: start + size], _Executable.FromString(serialized[start + size :])


def inside(thunk: Message) -> list[Message]:
    """Return the sequences of a loop, a call or a conditional; the first is where uses can be added."""
    if thunk.HasField("loop"):
        return [thunk.loop.condition, thunk.loop.body]
    return [thunk.call.sequence] if thunk.HasField("call") else list(thunk.conditional.branches)


def has_collectives(sequence: Message) -> bool:
    """Return whether there is a collective in the sequence or in what it holds."""
    return any(thunk.HasField("collective") or any(map(has_collectives, inside(thunk))) for thunk in sequence.thunks)


def _put_in_order(sequence: Message) -> None:
    holders = [thunk for thunk in sequence.thunks if any(map(has_collectives, inside(thunk)))]
    slices = list(_written_by(sequence.thunks))
    if len(holders) > 1:  # they need something in common, even if no collective is beside them
        slices += [next(_written_inside(holders[0]))]
    for holder in holders:
        for inner in inside(holder):
            _put_in_order(inner)
        uses = inside(holder)[0]
        for part in slices:
            copy = uses.thunks.add(kind="copy").copy
            for buffer in (copy.source, copy.destination):
                buffer.shape.element_type = _BYTE
                buffer.shape.dimensions.append(0)
                buffer.shape.is_dynamic.append(False)
                buffer.shape.layout.minor_to_major.append(0)
                buffer.slice.CopyFrom(part)


def _written_by(thunks: Sequence[Message]) -> Iterator[Message]:
    for thunk in thunks:
        yield from (buffer.slice for buffer in thunk.collective.buffers.destinations)


def _written_inside(thunk: Message) -> Iterator[Message]:
    for inner in inside(thunk):
        yield from _written_by(inner.thunks)
        for each in inner.thunks:
            yield from _written_inside(each)


def _varint(data: bytes) -> tuple[int, int]:
    """Return the number that the data begin with, and where it ends: seven bits a byte, the lowest first."""
    end = next(index for index, byte in enumerate(data) if byte < 0x80) + 1  # the last has no high bit
    return sum((byte & 0x7F) << (7 * index) for index, byte in enumerate(data[:end])), end


def _executable() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="kept_order.proto", package="kept_order", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, declared) in fields.items():
            repeated = isinstance(declared, list)
            kind = declared[0] if repeated else declared
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".{file.package}.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Executable"))


_Executable = _executable()
