"""What all workers of generation do: sequences of a short prompt that fill one window, drawn at a temperature."""

PROMPT = (5, 1, 69, 3)
TEMPERATURE = 0.8


def num_tokens(seq_len: int) -> int:
    """Tokens that are made of each sequence."""
    return seq_len - len(PROMPT)
