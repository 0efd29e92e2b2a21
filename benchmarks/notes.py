"""What a reader of docs/performance.md must know: its opening, and the notes below its tables. Called by `pages`."""

OPENING = """# Performance

What Shardwise costs beside a hand-written limit, and beside what people use today. `make bench`
(`benchmarks/main.py`) measures it, and `make bench ARGS=--write` writes this page. Peers run on the same machine in
the same minutes, each in a process of its own, and take turns in shuffled order. A ratio is taken within a round, and
given as median (lower - upper quartile). Absolute figures belong to the machine named below each table; ratios travel
better. Nothing here ran on a TPU or GPU: all devices are simulated, on the cores named there.

The limit of a step is one written by hand in plain JAX, for these models alone. Levanter is measured as it is, and with
its loss by blocks of 2,048 vocabulary entries. "Speed of" either is Shardwise's over theirs. The models, in float32 and
with 16 sequences a step: `tiny` has 4 layers of 128, 128 positions and 512 tokens; `small` has 6 layers of 256, 256
positions and 8,192 tokens; `small Llama` is as large, with half as many heads of keys and values and a SwiGLU of 704.
"""

STEP = """
The limit runs twice; how far its second row is from 1 is the noise. MFU: model FLOPs (6 a matrix parameter and token,
and 6 x layers x positions x embed for causal attention; recomputation is not counted) over the rate of a float32 matrix
product measured in the same rounds. Shardwise's process has the environment that a run gives its trainers, with huge
pages for malloc; the others are as their users start them. State and temporaries are the compiler's count for one
device; RSS is the process's peak, compilation included.
"""

START = """
Seconds from the command to the end of the first step. Cold: an empty SHARDWISE_CACHE; warm: the second run with the
same cache. Programs compile while data are read, so phases may overlap; `other` is the total less the phases.
Levanter's columns have no command line, no data and no run directory: its trainer's step alone, with JAX's compilation
cache.
"""

CHECKPOINT = """
Raw: a copy in host memory, one plain file with fsync, and reading it back. Blocks: until save() returns.
Durable: until all is on disk and committed. Restores are new processes whose file cache was emptied, and that have
touched and freed four times the memory: the first touch of a page may be a request to a virtual machine's host, slower
than all else here. Shardwise's save and restores include the digest of every array.
"""

MEMORY = """
Resident memory above what the process held before, at most and when the save is durable; a restore's growth has the
tree itself in it. Files of one checkpoint.
"""

BUCKET = """
The bucket is an S3 server of this machine (Versity's, over a folder), which shares the two cores with who talks to it.
Client: obstore, from Rust; an object for each shard, sixteen requests at once, and the bytes left as they come: nothing
is checked, and no array is made of them. A save ends when all is durable and committed. Memory is that of "Checkpoint:
memory and files".
"""

LOCAL = """
Two runs of the same job, of which one saves every fourth step on its hosts and the other on the disk. Blocks: how long
training waited. Whole: until the save counts; on the hosts each part is then there twice, on the disk it is durable.
Restore: of a trainer that was killed after that, as it counts it. Both hosts are this machine, whose two cores also
compute the steps and the digests; the network between them is the loopback. `make bench ARGS='--only local'`.
"""

RECOVERY = """
Seconds from `kill -9` (or from the command) until the next step's line stands in metrics.jsonl; the run goes on from
its newest checkpoint. What is unavoidable: a bare process with a trainer's imports, joining, restoring, loading the
programs, and one step, each measured in the same round. A host keeps a trainer in reserve whose imports are done; each
kill comes ten steps after the last start, so that it is.
"""

TOKENIZE = """
The same byte-level BPE of 8,192 tokens on the same text. tokenizers: the library's encode_batch_fast and an array of
each document, of texts that are in memory already; nothing is read or written. Shardwise: a whole store, from the file
to the disk: a digest of the text, lines to documents, tokens, ends of documents, fsync. Its processes are Ray's, which
has started before. `make bench ARGS='--only tokenize'`.
"""

GENERATE = """
All sequences begin with the same four tokens and fill one window, drawn at temperature 0.8 from the whole vocabulary;
float32. Of the batch all tokens are counted. Limit: a loop by hand in plain JAX, compiled as one program for all tokens
of sequences that begin together and never stop. Shardwise's sequences may stop, and their tokens come to the host after
every sixteen. Served: each sequence is a request of its own to the server of `shardwise serve`, all at the same time
from threads of its process; the answer is the whole text. Compiling is in none.
"""


def paragraph(text: str) -> str:
    """A note on one line."""
    return " ".join(text.split())
