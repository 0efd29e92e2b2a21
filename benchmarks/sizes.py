"""What is measured: the sizes of the models and their meshes. Read by every worker, so it imports no library."""

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and its batch; float32, AdamW, clip 1.

    Shaped as GPT-2 (learned positions, tied head) or, if `kv_heads` says how many heads share keys and values, as
    Llama (rotary positions, RMS norms, SwiGLU, a head of its own, no biases).
    """

    name: str
    layers: int
    heads: int
    embed: int
    mlp: int
    seq_len: int
    vocab: int
    sequences: int
    steps: int
    """Steps of one turn, so that a turn takes about as long at every size."""
    kv_heads: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.sequences * self.seq_len


@dataclass(frozen=True, kw_only=True)
class Case:
    """One size on one mesh: what all step workers of a group are given."""

    size: Size
    data: int
    tensor: int

    @property
    def num_devices(self) -> int:
        """Simulated devices."""
        return self.data * self.tensor

    @property
    def name(self) -> str:
        """For people, and the key in the results."""
        layout = "1 device" if self.num_devices == 1 else f"data {self.data} x tensor {self.tensor}"
        return f"{self.size.name}, {layout}"

    def dumps(self) -> str:
        """The case as a worker's argument."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        """The inverse of `dumps`."""
        fields = json.loads(text)
        return cls(size=Size(**fields["size"]), data=fields["data"], tensor=fields["tensor"])


TINY = Size(name="tiny", layers=4, heads=4, embed=128, mlp=512, seq_len=128, vocab=512, sequences=16, steps=10)
SMALL = Size(name="small", layers=6, heads=8, embed=256, mlp=1024, seq_len=256, vocab=8192, sequences=16, steps=3)
LLAMA = Size(
    name="small Llama",
    layers=6,
    heads=8,
    embed=256,
    mlp=704,
    seq_len=256,
    vocab=8192,
    sequences=16,
    steps=3,
    kv_heads=4,
)
CASES = tuple(
    Case(size=size, data=data, tensor=tensor) for size in (SMALL, LLAMA, TINY) for data, tensor in ((4, 2), (1, 1))
)
