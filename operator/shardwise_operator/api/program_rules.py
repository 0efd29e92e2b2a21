"""The rules on an own program, in CEL: those of `shardwise.job.rules.program`, with the same words."""

from functools import partial

from shardwise.job.rules.program import NAMES, NOT_OURS, NOT_PLANNED, ONE_OF_BOTH, ONE_START
from shardwise.job.spec.program import VARIABLE
from shardwise.protocol.program import OWN_PREFIXES, OWN_VARIABLES
from shardwise_operator.api.cel import Rule, quoted

_of_spec = partial(Rule, at="spec")
_of_program = partial(Rule, at="spec.program")

PROGRAM_RULES = (
    _of_spec(holds="has(self.training) != has(self.program)", message=f"expected {ONE_OF_BOTH}"),
    _of_spec(holds="!has(self.program) || !has(self.preflight)", message=f"expected {NOT_PLANNED}", field=".preflight"),
    _of_program(
        holds="has(self.module) != (has(self.command) && self.command.size() > 0)", message=f"expected {ONE_START}"
    ),
    _of_program(
        holds=f"!has(self.env) || self.env.all(name, name.matches('{VARIABLE}'))",
        message=f"expected {NAMES}",
        field=".env",
    ),
    _of_program(
        holds=f"!has(self.env) || self.env.all(name, !(name in {quoted(OWN_VARIABLES)}) "
        f"&& !{quoted(OWN_PREFIXES)}.exists(own, name.startsWith(own)))",
        message=f"expected {NOT_OURS}",
        field=".env",
    ),
)
