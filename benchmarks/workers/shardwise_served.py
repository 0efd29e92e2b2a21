"""Shardwise: `shardwise serve`, asked for as many texts at once by requests of their own, from this process."""

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.sizes import Case
from benchmarks.workers.serve import rate_of, serve, simulate

case, batch = Case.loads(sys.argv[1]), int(sys.argv[2])
simulate(1)

from benchmarks.workers.prompt import PROMPT, TEMPERATURE, num_tokens  # noqa: E402
from benchmarks.workers.shardwise_step import program_of  # noqa: E402  imports JAX
from tests.cli.server.small import serving  # noqa: E402

from shardwise.cli.server.model import ServedModel  # noqa: E402
from shardwise.train.data.tokenizer import ByteTokenizer  # noqa: E402
from shardwise.train.decoder import Decoder  # noqa: E402


class Letters(ByteTokenizer):
    """A stand-in, since the model has learned no text: each token is a letter, and none ends one."""

    end_of_text = -2

    def decode(self, tokens: Iterable[int]) -> str:
        """Return a letter for each token."""
        return "".join(chr(ord("a") + token % 26) for token in tokens)


def main() -> None:
    """Compile, then take turns."""
    program = program_of(case)
    params = program.lower_init().compile()()["params"]
    decoder = Decoder.of(program, params, batch)
    count = num_tokens(case.size.seq_len)
    model = ServedModel(name="model", program=program, tokenizer=Letters(), chat=None)
    with serving(model, decoder) as server, ThreadPoolExecutor(batch) as pool:

        def ask(seed: int) -> int:
            answer = server.complete(prompt=[*PROMPT], max_tokens=count, temperature=TEMPERATURE, seed=seed)
            made: int = answer["usage"]["completion_tokens"]
            return made

        def once() -> None:
            assert sum(pool.map(ask, range(batch))) == batch * count

        serve(partial(rate_of, once, steps=3, work=batch * count), {})


if __name__ == "__main__":
    main()
