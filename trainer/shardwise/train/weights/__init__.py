"""Published weights: GPT-2 and GPT-J as safetensors files with Hugging Face's names and layouts, in and out.

`read` opens a file, `place` puts it on a mesh, `write` makes one from a model's parameters, `model_section` is the
job section that it fits. Not here: downloading, tokenizers, and any other format.

    safetensors_file.py   the format: names, dtypes, shapes and bytes
    families.py           which tensor is which parameter, and how its axes lie
    recognise.py          from shapes and a config.json to a GptConfig, and back to a config.json
    fit.py                from a GptConfig to a job's model section
    reading.py            files to parameters, slice by slice
    writing.py            parameters to a file and its config.json
"""

from shardwise.train.weights.fit import check_fits, free_keys, model_section
from shardwise.train.weights.reading import Stored, place, read
from shardwise.train.weights.recognise import recognise
from shardwise.train.weights.writing import check_exportable, write

__all__ = [
    "Stored",
    "check_exportable",
    "check_fits",
    "free_keys",
    "model_section",
    "place",
    "read",
    "recognise",
    "write",
]
