"""A rule across fields in CEL, and the expressions that several rules share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardwise.job.flags import FUSION, OVERLAP, REFUSED, YES
from shardwise.job.presets import PRESETS

_SIZES = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 25, 32, 40, 48, 64, 128, 256, 512]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: the group it hangs at (dotted, `*` for items), what must hold, and the message if it does not.

    `message` is text; with `shows` it is a CEL expression that makes the text. `field` is the path, below the group, of
    the field that is blamed.
    """

    at: str
    holds: str
    message: str
    shows: bool = False
    field: str = ""


def quoted(words: Iterable[str]) -> str:
    """Return a CEL list of texts."""
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def of_preset(model: str, name: str, alias: str) -> str:
    """Return the value of a model's field, or else its preset's; one of the two must be given."""
    table = ", ".join(f"'{preset}': {sizes[name]}" for preset, sizes in PRESETS.items())
    return f"(has({model}.{alias}) ? {model}.{alias} : {{{table}}}[{model}.preset])"


def preset_or(model: str, name: str, alias: str, otherwise: str) -> str:
    """Return the value of a model's field, or else its preset's if that has one, or else what it follows from."""
    having = {preset: sizes[name] for preset, sizes in PRESETS.items() if name in sizes}
    table = ", ".join(f"'{preset}': {value}" for preset, value in having.items())
    asked = f"{model}.?preset.orValue('')"
    return (
        f"(has({model}.{alias}) ? {model}.{alias} : {asked} in {quoted(having)} ? {{{table}}}[{asked}] : {otherwise})"
    )


def has_size(model: str, *aliases: str) -> str:
    """Return whether the sizes of a model are known."""
    return f"(has({model}.preset) || ({' && '.join(f'has({model}.{alias})' for alias in aliases)}))"


def goes_up(path: str) -> str:
    """Return whether a part of a path is `..`; a name that only has two dots in it is one like any other."""
    return f"('/' + {path} + '/').contains('/../')"


def flag_rules(at: str, flags: str, *, unless: str = "", field: str = "") -> Iterator[Rule]:
    """Yield the rules of a list of XLA's options: each once, and none that is refused, whatever their values."""
    once = f"{flags}.all(flag, {flags}.exists_one(other, other.split('=')[0] == flag.split('=')[0]))"
    yield Rule(at=at, holds=unless + once, message="expected each option once", field=field)
    for name, reason in REFUSED.items():
        without = f"!{flags}.exists(flag, flag.split('=')[0] == '--{name}')"
        message = f"expected options without --{name}; {reason}"
        yield Rule(at=at, holds=unless + without, message=message, field=field)


def overlaps(flags: str) -> str:
    """Return whether the first of the two options of XLA that are wrong together is on."""
    return f"{flags}.exists(flag, flag.matches('{_on(OVERLAP)}'))"


def fusing(flags: str) -> str:
    """Return those of a list of XLA's options that are wrong together with the first one."""
    return f"{flags}.filter(flag, flag.matches('{_on(FUSION + '[a-z0-9_]*')}'))"


def _on(name: str) -> str:
    """Return the pattern of an option that is on."""
    return f"^--{name}(=(?i:{'|'.join(YES)}))?$"


def listed(before: str, *numbers: str) -> str:
    """Return text, and after it usual sizes that divide all numbers; 0 is a number that each of them divides."""
    return f"'{before} ' + {divisors(*numbers)}"


def divisors(*numbers: str) -> str:
    """Return the usual sizes that divide all numbers, as text."""
    fit = " && ".join(f"({number}) % size == 0" for number in numbers)
    return f"{_SIZES}.filter(size, {fit}).map(size, string(size)).join(', ')"
