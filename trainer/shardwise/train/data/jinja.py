"""The templates of conversations as transformers renders them, with jinja, for what is exported.

Each writes a conversation, and what every answer begins with, as its namesake in `train/data/chat.py`.
"""

import json
from collections.abc import Mapping

from shardwise.train.data.tokenizer import Tokenizer

_JINJA: Mapping[str, str] = {
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "llama3": (
        "{% for message in messages %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
        "{{ message['content'] | trim + '<|eot_id|>' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    ),
}

_CONTENT: Mapping[str, str] = {"chatml": "message['content']", "llama3": "message['content'] | trim"}
"""What they write of a message's content."""


def jinja_of(template: str, begin: str | None, *, spaced: bool = False) -> str:
    """Return a template as the `chat_template` of transformers, with the token that begins each conversation.

    It is `spaced` for a tokenizer that puts a space before each text: transformers encodes a conversation as one text,
    so the spaces that training has put before the messages are written out.
    """
    jinja, content = _JINJA[template], _CONTENT[template]
    if spaced:
        jinja = jinja.replace(content, f"(' ' + ({content}) if {content} else '')")
    return ("" if begin is None else f"{{{{ {json.dumps(begin)} }}}}") + jinja


def puts_a_space(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer puts a space before each text that it encodes, as Llama 2's does."""

    def tokens(*texts: str) -> list[int]:
        return [int(token) for text in texts for token in tokenizer.encode(text)]

    # To one that passes over spaces both are the same.
    return all(tokens("a\n", text) == tokens(f"a\n {text}") != tokens(f"a\n{text}") for text in ("b", " b"))
