"""The rules of the mixture in CEL: those of `shardwise.job.rules.training` on sources and phases."""

from functools import partial

from shardwise_operator.api.cel import Rule

_DATA = "spec.training.data"
_of_data = partial(Rule, at=_DATA)
_WEIGHT = "source.?weight.orValue(1.0)"

DATA_RULES = (
    Rule(
        at=f"{_DATA}.train.*",
        holds="!has(self.epochs) || !has(self.weight)",
        message="expected a weight or epochs, not both",
        field=".weight",
    ),
    _of_data(
        holds=f"self.train.all(source, has(source.epochs) || {_WEIGHT} > 0.0 || (has(self.phases) && "
        "self.phases.exists(phase, source.name in phase.weights && phase.weights[source.name] > 0.0)))",
        message="expected a weight above 0 of each source, there or in phases",
        field=".train",
    ),
    _of_data(
        holds="!has(self.phases) || self.train.all(source, has(source.epochs)) || "
        f"self.train.exists(source, !has(source.epochs) && {_WEIGHT} > 0.0)",
        message="expected one weight above 0 before the first of the phases",
        field=".train",
    ),
    _of_data(
        holds="!has(self.phases) || self.phases.all(phase, phase.weights.all(name, "
        "self.train.exists(source, source.name == name && !has(source.epochs))))",
        message="expected weights of sources that there are and that have no epochs",
        field=".phases",
    ),
    _of_data(
        holds="!has(self.phases) || (self.phases.map(phase, phase.fromStep).isSorted() && self.phases.all(phase, "
        "self.phases.exists_one(other, other.fromStep == phase.fromStep)))",
        message="expected phases that begin one after the other",
        field=".phases",
    ),
    Rule(
        at=f"{_DATA}.phases.*",
        holds="self.weights.exists(name, self.weights[name] > 0.0)",
        message="expected one weight above 0",
        field=".weights",
    ),
    Rule(
        at="spec.training",
        holds="!has(self.data.phases) || self.data.phases.all(phase, phase.fromStep < self.steps)",
        message="expected phases that begin before the run's last step",
        field=".data.phases",
    ),
)
