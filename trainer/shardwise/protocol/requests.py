"""What a leader asks of the agent of a host, and the answers. `op` says in JSON which request it is."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from shardwise.protocol.message import Message
from shardwise.protocol.orders import Orders
from shardwise.protocol.report import Exit


class StartTrainer(Message):
    """End what runs, and start a trainer with these orders; answered by `Done`."""

    op: Literal["start"] = "start"
    orders: Orders


class EndTrainer(Message):
    """SIGKILL the trainer; answered by `Ended`."""

    op: Literal["end"] = "end"


class SignalTrainer(Message):
    """Send the trainer its signal, if it is that of the attempt; answered by `Done`.

    Without an attempt any is meant.
    """

    op: Literal["signal"] = "signal"
    word: Literal["stop", "save"]
    attempt: int | None = None


class ReadStacks(Message):
    """Say what every thread of the trainer is doing; answered by `Stacks`."""

    op: Literal["stacks"] = "stacks"


class Watch(Message):
    """Send a `Report` once its version differs from `after`, at the latest after `seconds`."""

    op: Literal["watch"] = "watch"
    after: int
    seconds: float


Request = StartTrainer | EndTrainer | SignalTrainer | ReadStacks | Watch
REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="op")])


class Done(Message):
    """A request was carried out."""


class Ended(Message):
    """How the agent's trainer ended; None if it had none."""

    agent_id: str
    exit: Exit | None


class Stacks(Message):
    """What every thread of a trainer is doing, for people."""

    text: str
