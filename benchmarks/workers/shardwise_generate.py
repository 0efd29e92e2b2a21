"""Shardwise: `shardwise.train.generate` as the command calls it, its programs compiled beforehand."""

import sys
from functools import partial

from benchmarks.sizes import Case
from benchmarks.workers.serve import rate_of, serve, simulate

case, batch = Case.loads(sys.argv[1]), int(sys.argv[2])
simulate(1)

from benchmarks.workers.prompt import PROMPT, TEMPERATURE, num_tokens  # noqa: E402
from benchmarks.workers.shardwise_step import program_of  # noqa: E402  imports JAX

from shardwise.train.decoder import Decoder  # noqa: E402
from shardwise.train.generation import Wish, of_prompts  # noqa: E402
from shardwise.train.sampling import Sampling  # noqa: E402


def main() -> None:
    """Compile, then take turns."""
    program = program_of(case)
    params = program.lower_init().compile()()["params"]
    decoder = Decoder.of(program, params, batch)
    count = num_tokens(case.size.seq_len)
    prompts = [list(PROMPT)] * batch
    wish = Wish(num_tokens=count, sampling=Sampling(temperature=TEMPERATURE), seed=1)

    def once() -> None:
        made = sum(len(part.tokens) for part in of_prompts(decoder, prompts, wish))
        assert made == batch * count

    serve(partial(rate_of, once, steps=3, work=batch * count), {})


if __name__ == "__main__":
    main()
