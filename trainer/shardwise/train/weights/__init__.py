"""Published weights: safetensors files with Hugging Face's names and layouts of several families, in and out.

`read` opens a file, `place` puts it on a mesh, `write` makes one from a model's parameters, `model_section` is the
job section that it fits. Not here: downloading, and any other format.

    safetensors_file.py   the format: names, dtypes, shapes and bytes
    tensors.py            a published tensor as a part of a parameter
    family.py             what a family is: rows of tensors, keys of config.json, and what its models share
    parts.py              what the families' values are made of
    gpt_families.py       GPT-2, GPT-J, GPT-NeoX
    llama_parts.py        what those of Llama's kind are made of
    llama_families.py     Llama, Granite, SmolLM3, Mistral, Mixtral, Qwen
    gpt_oss_family.py     gpt-oss
    post_norm_families.py OLMo, Gemma
    biased_mixture_families.py GLM-4.5, dots.llm1
    families.py           all of them
    config_file.py        a config.json as fields of a GptConfig, and back
    key_values.py         values of its keys, checked
    rope_keys.py          those of rotary positions
    rotary_pattern_keys.py those of blocks without positions
    window_keys.py        those of sliding windows
    recognise.py          from shapes and a config.json to a GptConfig
    locate.py             which file a path means
    tokenizer_files.py    the tokenizer's files beside them
    published_beside.py   what an export keeps of the model's own files there
    fit.py                from a GptConfig to a job's model section
    mxfp4.py              numbers packed in 4 bits
    stacked.py            tensors of all experts, packed or not, as those of each
    reading.py            files to parameters, slice by slice
    writing.py            parameters to a file and its config.json
    adapters.py           adapters to a file and its adapter_config.json
"""

from shardwise.train.weights.adapters import write_adapters
from shardwise.train.weights.fit import check_fits, free_keys, model_section
from shardwise.train.weights.published_beside import PublishedBeside
from shardwise.train.weights.reading import Stored, place, read
from shardwise.train.weights.recognise import recognise
from shardwise.train.weights.tokenizer_files import (
    fetch_tokenizer,
    special_tokens,
    write_generation_config,
    write_tokenizer,
)
from shardwise.train.weights.writing import check_exportable, write

__all__ = [
    "PublishedBeside",
    "Stored",
    "check_exportable",
    "check_fits",
    "fetch_tokenizer",
    "free_keys",
    "model_section",
    "place",
    "read",
    "recognise",
    "special_tokens",
    "write",
    "write_adapters",
    "write_generation_config",
    "write_tokenizer",
]
