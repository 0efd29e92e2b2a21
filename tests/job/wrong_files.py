"""Wrong job files as rows: an override of a right job, the path that the refusal names, and fragments of what it says.

`test_wrong_files.py` beside this gives them to the loader, `tests/operator/api/test_layers.py` to a real API server.
"""

from pathlib import Path

QUICKSTART = Path(__file__).parent / "golden" / "quickstart.yaml"
IN_CLUSTER = Path(__file__).parent / "golden" / "in-cluster.yaml"  # the same with a pod section

REST = "steps: 9, data: {train: [{name: a, paths: [b]}]}, batch: {sequences: 16}, optimizer: {learningRate: 1}"
HALF = "precision: {compute: bfloat16}"
PAIRS = "{name: a, paths: [b], chatTemplate: chatml, preferences: true}"
LABELLED = "{name: a, paths: [b], chatTemplate: chatml, labels: true}"
PREFERENCES = "preferences: true"
WHOLE_STATE = "startFrom: {path: a, step: 4, restore: all}"
TINY = "model: {preset: tiny}, steps: 9, batch: {sequences: 16}, optimizer: {learningRate: 1}"
PROMPTS = "{name: a, paths: [b], prompts: true}"
LEARNING = f"{TINY}, data: {{train: [{PROMPTS}]}}"
CHAT_PROMPTS = "{name: c, paths: [b], prompts: true, chatTemplate: chatml}"
REWARD = "reinforcement: {samples: 4, maxTokens: 8, reward: {pattern: (a)}"
ADAPTERS = f"{TINY}, lora: {{rank: 4}}, startFrom: {{path: a, step: 0}}"
LATENT = "preset: llama2-7b"
NARROW = "rotaryDim: 64, latent: {kvRank: 64, valueSize: 96}"
WSD = "training.optimizer.schedule={kind: warmup-stable-decay"

# One override that is wrong by itself, the path that the message names, and fragments of the rest.
FIELDS = [
    ("apiVersion=v1", "apiVersion", ['given "v1"', "expected shardwise.dev/v1alpha1"]),
    ("kind=Trainingjob", "kind", ['given "Trainingjob"', 'did you mean "TrainingJob"?']),
    ("metadata.name=Quick_Start", "metadata.name", ['given "Quick_Start"', "lower-case letters, digits and '-'"]),
    ("metadata.name=" + "a" * 41, "metadata.name", ["1 to 40 characters"]),
    ("metadata.name=17", "metadata.name", ["given 17", 'quote it ("17")']),
    ("metadata.name=1.10", "metadata.name", ["given 1.10,", 'quote it ("1.10")']),
    ("metadata.name=True", "metadata.name", ["given True,", 'quote it ("True")']),
    ("hardware.slices=0x800", "spec.hardware.slices", ["given 0x800,", "an integer from 1 to 1024"]),
    ("metadata.labels={team: 3}", "metadata.labels.team", ["given 3", "0 to 63 characters"]),
    ("metadata.labels={'': a}", "metadata.labels.", ["a key of 1 to 317 characters"]),
    ("hardware.accelerator=cpu_sim", "spec.hardware.accelerator", ['given "cpu_sim"', 'did you mean "cpu-sim"?']),
    ("hardware.accelerator=quantum", "spec.hardware.accelerator", ["expected cpu-sim, ", "gke-gpu-h100"]),
    ("hardware.accelerator=tpu-v5p", "spec.hardware.topology", ['given "1x8"', "310 grids of tpu-v5p", "2x2x1, 2x2x2"]),
    ("hardware={accelerator: tpu-v6e, topology: 4x2}", "spec.hardware.topology", ["chips: 1x1, 2x2, 2x4, 4x4"]),
    ("hardware={accelerator: gke-gpu-h200, topology: 2x4}", "spec.hardware.topology", ["and 8 devices per host"]),
    ("hardware.topology='8'", "spec.hardware.topology", ["hosts x devices per host, such as 1x8"]),
    ("hardware.topology=1x", "spec.hardware.topology", ["whole numbers joined by 'x'"]),
    ("hardware.topology=1x999", "spec.hardware.topology", ["64 devices per host"]),
    ("hardware.topology=2x2x2", "spec.hardware.topology", ["hosts x devices per host"]),
    ("hardware.slices=0", "spec.hardware.slices", ["given 0", "an integer from 1 to 1024"]),
    ("recovery.minSlices=0", "spec.recovery.minSlices", ["given 0", "an integer from 1 to 1024"]),
    ("hardware.slicess=1", "spec.hardware.slicess", ["the unknown key", 'did you mean "slices"?']),
    ("hardware=cpu-sim", "spec.hardware", ['given "cpu-sim"', "expected a mapping"]),
    ("program.module=my script", "spec.program.module", ['given "my script"', "names joined by '.'"]),
    ("program.comand=[a]", "spec.program.comand", ['did you mean "command"?']),
    ("program.command=python my.py", "spec.program.command", ["a list of up to 256 items"]),
    ("deadline=tomorrow", "spec.deadline", ['given "tomorrow"', "a duration such as 90s, 10m, 1h30m or 7d"]),
    ("deadline=0s", "spec.deadline", ['given "0s"', "above 0s, up to 3650d"]),
    ("deadline=4000d", "spec.deadline", ['given "4000d"', "up to 3650d"]),
    ("preflight=run", "spec.preflight", ['given "run"', "plan"]),
    ("deadline=3600", "spec.deadline", ["given 3600", "a duration such as"]),
    ("training.steps=abc", "spec.training.steps", ['given "abc"', "an integer from 1 to 2147483647"]),
    ("training.steps='500'", "spec.training.steps", ['given "500"', "an integer"]),
    ("training.steps=1.5", "spec.training.steps", ["given 1.5", "an integer"]),
    ("training.steps=true", "spec.training.steps", ["given true", "an integer"]),
    ("training.steps=0", "spec.training.steps", ["given 0", "from 1 to"]),
    ("training.steps=1:30", "spec.training.steps", ['given "1:30"', "an integer"]),
    ("training.steps=017", "spec.training.steps", ["given 017", "the number in plain digits"]),
    ("training.steps=", "spec.training.steps", ["given no value", "--set takes no key out"]),
    ("training.precision.products=fp8", "spec.training.precision.products", ["one of compute, float8, int8"]),
    ("training.stepz=5", "spec.training.stepz", ['did you mean "steps"?']),
    ("training.seqLen=64", "spec.training.seqLen", ['"seqLen" belongs to spec.training.model']),
    ('training.seed="\\a\\n"', "spec.training.seed", ['given "', "\\u0007", "\\n"]),
    ('training.seed="\\ud800"', "spec.training.seed", ["expected YAML", "Unicode"]),
    ("training.seed=-1", "spec.training.seed", ["given -1", "from 0 to 2147483647"]),
    ("training.seed=2147483648", "spec.training.seed", ["given 2147483648"]),
    ("training.model.preset=gpt2xl", "spec.training.model.preset", ["one of tiny, ", 'did you mean "gpt2-xl"?']),
    ("training.model.seq_len=64", "spec.training.model.seq_len", ['did you mean "seqLen"?']),
    ("training.model.seqLen=0", "spec.training.model.seqLen", ["from 1 to 1048576"]),
    ("training.model.block=serial", "spec.training.model.block", ["one of sequential, parallel"]),
    ("training.model.tiedHead=1", "spec.training.model.tiedHead", ["given 1", "true or false"]),
    ("training.optimizer.epsilon=1e-40", "spec.training.optimizer.epsilon", ["1e-30"]),
    ("training.model.normEpsilon=0", "spec.training.model.normEpsilon", ["above 1e-20, up to 1"]),
    ("training.model.normEpsilon=1e-26", "spec.training.model.normEpsilon", ["above 1e-20, up to 1"]),
    ("training.model.ropeTheta=1", "spec.training.model.ropeTheta", ["given 1", "above 1"]),
    ("training.model.dropout.embed=1", "spec.training.model.dropout.embed", ["from 0, below 1"]),
    ("training.data.train=[]", "spec.training.data.train", ["given 0 items", "1 to 64 items"]),
    ("training.data.train=README.md", "spec.training.data.train", ["a list of 1 to 64 items"]),
    ("training.data.train.0.paths=README.md", "spec.training.data.train.0.paths", ["a list of 1 to 1024 items"]),
    ("training.data.train.0.paths=[3]", "spec.training.data.train.0.paths.0", ["given 3", 'quote it ("3")']),
    ("training.data.train.0.weight=-1", "spec.training.data.train.0.weight", ["from 0 to 1000000"]),
    ("training.data.train.0.weight=0", "spec.training.data.train.0.weight", ["above 0, here or in data.phases"]),
    (
        "training.data.train.0={name: a, paths: [a], weight: 1, epochs: 2}",
        "spec.training.data.train.0.weight",
        ["given 1.0", "expected nothing with epochs"],
    ),
    (
        "training.data={train: [{name: a, paths: [a], weight: 0}], phases: [{fromStep: 5, weights: {a: 1}}]}",
        "spec.training.data.train",
        ["one weight above 0 before the first of data.phases"],
    ),
    (
        "training.data={train: [{name: a, paths: [a]}], phases: [{fromStep: 5, weights: {b: 1}}]}",
        "spec.training.data.phases.0.weights.b",
        ["the name of a source: a"],
    ),
    (
        "training.data={train: [{name: a, paths: [a], epochs: 1}], phases: [{fromStep: 5, weights: {a: 1}}]}",
        "spec.training.data.phases.0.weights.a",
        ["no weight of a source with epochs"],
    ),
    (
        (
            "training.data={train: [{name: a, paths: [a]}], "
            "phases: [{fromStep: 9, weights: {a: 1}}, {fromStep: 9, weights: {a: 2}}]}"
        ),
        "spec.training.data.phases.1.fromStep",
        ["given 9", "a step after 9"],
    ),
    (
        "training.data={train: [{name: a, paths: [a]}], phases: [{fromStep: 100000, weights: {a: 1}}]}",
        "spec.training.data.phases.0.fromStep",
        ["a step after 0, before the run's"],
    ),
    (
        "training.data={train: [{name: a, paths: [a]}], phases: [{fromStep: 5, weights: {a: 0}}]}",
        "spec.training.data.phases.0.weights",
        ["given no weight above 0"],
    ),
    ("training.data.train.0.weigth=1", "spec.training.data.train.0.weigth", ['did you mean "weight"?']),
    ("training.data.train.0={name: a}", "spec.training.data.train.0.paths", ["given nothing", "a list of"]),
    ("training.data.heldOut=0.6", "spec.training.data.heldOut", ["from 0 to 0.5"]),
    ("training.data.attendAcross=documents", "spec.training.data.attendAcross", ['did you mean "document"?']),
    ("training.mesh.fsdp=on", "spec.training.mesh.fsdp", ["given on", "write true or false"]),
    ("training.mesh=2", "spec.training.mesh", ["given 2", "expected a mapping"]),
    ("training.batch={}", "spec.training.batch.sequences", ["given nothing", "an integer from 1"]),
    ("training.optimizer.learningRate='3e-4'", "spec.training.optimizer.learningRate", ['given "3e-4"', "a number"]),
    ("training.optimizer.learningRate=.nan", "spec.training.optimizer.learningRate", ["given nan", "a number above 0"]),
    ("training.optimizer.learningRate=1e400", "spec.training.optimizer.learningRate", ["given inf"]),
    ("training.optimizer.beta1=1.0", "spec.training.optimizer.beta1", ["from 0, below 1"]),
    (
        "training.optimizer.groups=[{match: a, rateFactor: -1}]",
        "spec.training.optimizer.groups.0.rateFactor",
        ["from 0"],
    ),
    ("training.optimizer.groups=[{rateFactor: 0}]", "spec.training.optimizer.groups.0.match", ["given nothing"]),
    ("training.data.train.0.chatTemplate=alpaca", "spec.training.data.train.0.chatTemplate", ["chatml, llama3"]),
    ("training.evaluation.sets=[{name: heldOut, paths: [a]}]", "spec.training.evaluation.sets.0.name", ["lower-case"]),
    ("training.optimizer.name=adamW2", "spec.training.optimizer.name", ['did you mean "adamw"?']),
    ("training.mesh.dataInner=0", "spec.training.mesh.dataInner", ["given 0", "from 1 to 4096"]),
    ("training.xlaFlags=[xla_dump_to=/x]", "spec.training.xlaFlags.0", ["an option of XLA's compiler, such as --xla_"]),
    ("training.xlaFlags=--xla_dump_to=/x", "spec.training.xlaFlags", ["a list of up to 64 items"]),
    ("training.precision.compute=bf16", "spec.training.precision.compute", ["one of float32, bfloat16"]),
    ("training.loss.zLoss=-1", "spec.training.loss.zLoss", ["from 0 to 1"]),
    ("training.checkpoint.every=10", "spec.training.checkpoint.every", ["given 10", "a duration such as"]),
    ("training.checkpoint.every=10min", "spec.training.checkpoint.every", ['given "10min"']),
    ("training.checkpoint.keep.last=-1", "spec.training.checkpoint.keep.last", ["from 1 to 10000"]),
    (
        "training.tracking.wandb=x",
        "spec.training.tracking.wandb",
        ["one of tensorboard, wandbProject, mlflowExperiment, trackioProject"],
    ),
]

# Overrides that are wrong together, or against the rest of the job.
RULES = [
    ("program={command: [python, my.py]}", "spec", ["given both", "either training or program"]),
    (
        "hardware={accelerator: gpu, topology: 1024x1, slices: 5}",
        "spec.hardware.slices",
        ["given 5", "at most 4 slices"],
    ),
    (
        "hardware={accelerator: tpu-v5p, topology: 4x4x4, slices: 257}",
        "spec.hardware.slices",
        ["given 257", "at most 256 slices of 16 hosts: a job has at most 4096 hosts"],
    ),
    (
        f"training={{mesh: {{context: 2, fsdp: false}}, model: {{preset: tiny, seqLen: 126}}, {REST}}}",
        "spec.training.mesh.context",
        ["given 2", "seqLen"],
    ),
    (
        "training.model={layers: 2, heads: 8, headSize: 7, embed: 64, seqLen: 64, position: rotary}",
        "spec.training.model.headSize",
        ["given 7", "an even number for rotary positions"],
    ),
    (
        "training.mesh.context=3",
        "spec.training.mesh.context",
        ["given 3", "divides 4 devices of a replica with tensor 2: 1, 2, 4"],
    ),
    (
        "training.mesh.pipeline=3",
        "spec.training.mesh.pipeline",
        ["given 3", "divides 4 devices of a replica with tensor 2: 1, 2, 4"],
    ),
    (
        "training.mesh.dataInner=3",
        "spec.training.mesh.dataInner",
        ["given 3", "divides data 4: 1, 2, 4", "leave it out"],
    ),
    (
        "training.mesh={dataInner: 2, fsdp: false}",
        "spec.training.mesh.dataInner",
        ["1 with fsdp: false", "leave it out"],
    ),
    (
        "training.mesh.tensor=3",
        "spec.training.mesh.tensor",
        ["given 3", "divides 8 devices of a replica and fits the rest of the job: 1, 2, 4"],
    ),
    ("training.mesh.tensor=8", "spec.training.mesh.tensor", ["4 heads over tensor 8", ": 1, 2, 4"]),
    ("training.model.preset=gpt2-xl", "spec.training.mesh.tensor", ["25 heads over tensor 2", "8 devices: 1"]),
    ("training.model.mlp=511", "spec.training.mesh.tensor", ["511 mlp over tensor 2", "8 devices: 1"]),
    (
        "training.model={layers: 1, heads: 3, embed: 9, seqLen: 8, mlp: 7}",
        "spec.training.mesh.tensor",
        ["embed 9 over data 4 with fsdp", "no size does"],
    ),
    (
        "training.model={layers: 2, heads: 2, embed: 30, mlp: 64, seqLen: 8}",
        "spec.training.mesh.tensor",
        ["embed 30 over data 4 with fsdp"],
    ),
    (
        "training.mesh.replica=3",
        "spec.training.mesh.replica",
        ["given 3", "divides 8 devices and fits the rest of the job: 1, 2, 4"],
    ),
    ("training.mesh.replica=8", "spec.training.mesh.tensor", ["1 devices of a replica: 1"]),
    ("recovery.minSlices=2", "spec.recovery.minSlices", ["given 2", "at most the 1 of hardware.slices"]),
    ("training.batch.sequences=6", "spec.training.batch.sequences", ["data 4 x replica 1", "take 4 or 8"]),
    ("training.batch={sequences: 2147483644, microbatches: 5}", "spec.training.batch.sequences", ["microbatches 1, "]),
    ("training.batch.sequences=2", "spec.training.batch.sequences", ["take 4"]),
    (
        "training.batch.rampUp=[{untilStep: 5, sequences: 6}]",
        "spec.training.batch.rampUp.0.sequences",
        ["given 6", "a multiple of data 4 x replica 1 x microbatches 1", "take 4 or 8"],
    ),
    (
        "training.batch.rampUp=[{untilStep: 5, sequences: 16}]",
        "spec.training.batch.rampUp.0.sequences",
        ["given 16", "more than 0, and fewer than the 16 of the steps after the ramp"],
    ),
    (
        "training.batch.rampUp=[{untilStep: 5, sequences: 8}, {untilStep: 9, sequences: 4}]",
        "spec.training.batch.rampUp.1.sequences",
        ["given 4", "more than 8, and fewer than the 16"],
    ),
    (
        "training.batch.rampUp=[{untilStep: 5, sequences: 4}, {untilStep: 5, sequences: 8}]",
        "spec.training.batch.rampUp.1.untilStep",
        ["given 5", "a step after 5, before the run's"],
    ),
    (
        "training.batch.rampUp=[{untilStep: 100000, sequences: 8}]",
        "spec.training.batch.rampUp.0.untilStep",
        ["given 100000", "before the run's"],
    ),
    (
        "training.batch.microbatches=3",
        "spec.training.batch.sequences",
        ["microbatches 3", "take 12 or 24", "microbatches 1, 2, 4 with 16 sequences"],
    ),
    ("training.model={}", "spec.training.model", ["layers, heads, embed, seqLen", "preset: tiny"]),
    ("training.model={layers: 2, embed: 64}", "spec.training.model", ["neither a preset nor heads, seqLen"]),
    ("training.model.heads=12", "spec.training.model.heads", ["divides embed 128: 1, 2, 4, 8, 16"]),
    (
        "training.model={preset: tiny, rotaryPattern: 4}",
        "spec.training.model.rotaryPattern",
        ["given 4", "no rotaryPattern with position: learned", "set position: rotary, or take it out"],
    ),
    (
        "training.model={preset: tiny, preNorm: false}",
        "spec.training.model.postNorm",
        ["given false", "true with preNorm: false", "or set preNorm: true"],
    ),
    (
        "training.model={preset: tiny, preNorm: false, postNorm: true, block: parallel}",
        "spec.training.model.block",
        ['given "parallel"', "sequential with preNorm: false", "or set preNorm: true"],
    ),
    (
        "training.model={preset: tiny, qkNormOver: all-heads}",
        "spec.training.model.qkNormOver",
        ['given "all-heads"', "head without qkNorm", "or set qkNorm: true"],
    ),
    (
        "training.model={preset: tiny, mlpBias: false, experts: {count: 4, perToken: 2}}",
        "spec.training.model.activation",
        ["gelu", "swiglu, geglu, swiglu-clamped with experts"],
    ),
    ("training.mesh.expert=2", "spec.training.mesh.expert", ["given 2", "1 without model.experts"]),
    (
        f"training={{model: {{preset: mixtral-8x7b}}, mesh: {{expert: 3, tensor: 2}}, {REST}}}",
        "spec.training.mesh.expert",
        ["given 3", "divides the 8 experts and data 4: 1, 2, 4"],
    ),
    (
        f"training={{model: {{preset: mixtral-8x7b}}, mesh: {{expert: 8, tensor: 2}}, {REST}}}",
        "spec.training.mesh.expert",
        ["given 8", "divides the 8 experts and data 4: 1, 2, 4"],
    ),
    (
        f"training={{model: {{preset: mixtral-8x7b}}, mesh: {{expert: 2, dataInner: 4}}, {REST}}}",
        "spec.training.mesh.dataInner",
        ["given 4", "2, since the experts are split over the same devices"],
    ),
    (
        "training.model={preset: llama2-7b, experts: {count: 4, perToken: 5}}",
        "spec.training.model.experts.perToken",
        ["given 5", "at most the 4 experts that there are"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {perToken: 9}}",
        "spec.training.model.experts.perToken",
        ["given 9", "at most the 8 experts that there are"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {sharedGate: true}}",
        "spec.training.model.experts.sharedGate",
        ["given true", "shared beside it"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {shared: 1023}}",
        "spec.training.mesh.tensor",
        ["1023 shared over tensor 2"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {biasRate: 0.01}}",
        "spec.training.model.experts.biasRate",
        ["given 0.01", "no biasRate without pickBias: true"],
    ),
    (
        "training={lora: {rank: 8}, startFrom: {path: base, step: 0}, model: "
        "{preset: mixtral-8x7b, experts: {pickBias: true, biasRate: 0.01}}, " + REST + "}",
        "spec.training.model.experts.biasRate",
        ["given 0.01", "0 with lora", "leave it out"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {groups: 3}}",
        "spec.training.model.experts.groups",
        ["given 3", "divides count 8: 1, 2, 4, 8"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {groups: 2, groupsPerToken: 3}}",
        "spec.training.model.experts.groupsPerToken",
        ["given 3", "at most the 2 groups that there are"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {perToken: 3, groups: 4}}",
        "spec.training.model.experts.groupsPerToken",
        ["given 1", "groups that have perToken 3 experts together; each has 2"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {groups: 8, groupsPerToken: 2}}",
        "spec.training.model.experts.groupScore",
        ['given "two-best"', "best with one expert in each group"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {denseBlocks: 1}}",
        "spec.training.model.experts.denseMlp",
        ["given nothing", "the width of the MLP, with denseBlocks"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {denseMlp: 64}}",
        "spec.training.model.experts.denseMlp",
        ["given 64", "nothing without denseBlocks"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {denseBlocks: 32, denseMlp: 64}}",
        "spec.training.model.experts.denseBlocks",
        ["given 32", "fewer than the 32 layers, so that one has experts"],
    ),
    (
        "training={model: {preset: mixtral-8x7b, experts: {denseBlocks: 2, denseMlp: 64}}, mesh: {pipeline: 4}, "
        + REST.replace("16", "16, microbatches: 4")
        + "}",
        "spec.training.mesh.pipeline",
        ["given 4", "divides 30 layers behind denseBlocks"],
    ),
    (
        "training={model: {preset: glm4.5-air}, mesh: {pipeline: 2}, "
        + REST.replace("16", "16, microbatches: 2")
        + "}",
        "spec.training.mesh.pipeline",
        ["given 2", "divides 45 layers behind denseBlocks"],
    ),
    (
        "training.model={preset: glm4.5-air, experts: {pickBias: false, biasRate: 0.01}}",
        "spec.training.model.experts.biasRate",
        ["given 0.01", "no biasRate without pickBias: true"],
    ),
    (
        "training.model={preset: glm4.5-air, experts: {groups: 8, groupsPerToken: 9}}",
        "spec.training.model.experts.groupsPerToken",
        ["given 9", "at most the 8 groups that there are"],
    ),
    (
        "training.model={preset: mixtral-8x7b, experts: {denseBlocks: 1, denseMlp: 1023}}",
        "spec.training.mesh.tensor",
        ["1023 denseMlp over tensor 2"],
    ),
    (
        "training.model={preset: llama2-7b, experts: {perToken: 2}}",
        "spec.training.model.experts",
        ["given no count", "count and perToken", "a preset that has experts"],
    ),
    *(
        (f"training.model={{{LATENT}, {given}}}", f"spec.training.model.{field}", fragments)
        for given, field, fragments in (
            ("latent: {kvRank: 64}", "rotaryDim", ["given 128", "less than headSize 128 with latent"]),
            ("rotaryDim: 64, latent: {qRank: 64}", "latent", ["given no kvRank", "a preset that has latent"]),
            ("kvHeads: 8, rotaryDim: 64, latent: {kvRank: 64}", "kvHeads", ["given 8", "the 32 heads with latent"]),
            ("rotaryDim: 64, latent: {kvRank: 64}, attentionOutBias: true", "attentionOutBias", ["false with latent"]),
            ("rotaryDim: 64, latent: {kvRank: 64}, attentionBias: true", "attentionBias", ["given true", "false with"]),
            ("rotaryDim: 64, latent: {kvRank: 64}, qkNorm: true", "qkNorm", ["given true", "false with latent"]),
            (
                "rotaryDim: 64, latent: {kvRank: 64}, slidingWindow: 9",
                "slidingWindow",
                ["no slidingWindow with latent"],
            ),
            (
                "rotaryDim: 64, latent: {kvRank: 64}, rotaryPattern: 2",
                "rotaryPattern",
                ["no rotaryPattern with latent"],
            ),
        )
    ),
    (
        "training.model={preset: tiny, attentionBias: false, latent: {kvRank: 64, valueSize: 8}}",
        "spec.training.model.position",
        ['given "learned"', "rotary with latent"],
    ),
    (
        f"training.model={{{LATENT}, rotaryDim: 64, latent: {{kvRank: 65}}}}",
        "spec.training.mesh.tensor",
        ["129 latent.kvRank + rotaryDim over tensor 2"],
    ),
    (
        f"training.model={{{LATENT}, rotaryDim: 64, latent: {{kvRank: 66, qRank: 33}}}}",
        "spec.training.mesh.tensor",
        ["33 latent.qRank over tensor 2", "latent.kvRank 66 over data 4 with fsdp", "latent.qRank 33 over data 4"],
    ),
    (
        f"training={{model: {{{LATENT}, {NARROW}, attention: cudnn}}, {HALF}, {REST}}}",
        "spec.training.model.latent.valueSize",
        ["96 with headSize 128", "values as wide as headSize with attention: cudnn"],
    ),
    (
        "training.model={preset: mixtral-8x7b, slidingWindowPattern: 2}",
        "spec.training.model.slidingWindowPattern",
        ["given 2", "no slidingWindowPattern without slidingWindow"],
    ),
    (
        "training.model={preset: llama3.1-8b, ropeScaling: {kind: llama3, factor: 2, truncate: false}}",
        "spec.training.model.ropeScaling.truncate",
        ["given false", "true with kind: llama3"],
    ),
    (
        "training.model={preset: llama3.1-8b, ropeScaling: {kind: longrope, factor: 2, shortFactors: [1.5]}}",
        "spec.training.model.ropeScaling.longFactors",
        ["given 0", "64 numbers, half of rotaryDim"],
    ),
    ("training.model.rotaryDim=8", "spec.training.model.rotaryDim", ["position: learned"]),
    ("training.model.headBias=true", "spec.training.model.headBias", ["false with tiedHead: true"]),
    ("training.model.vocabSize=256", "spec.training.model.vocabSize", ["given 256", "at least 257"]),
    ("training.model.dropout.attention=0.1", "spec.training.model.dropout.attention", ["expected 0", "kernels never"]),
    ("training.model.attention=cudnn", "spec.training.model.attention", ["cpu-sim: auto, plain, blockwise"]),
    (
        "training.model.attention=cudnn",
        "spec.training.precision.compute",
        ["float32", "bfloat16 with attention: cudnn", "attention: auto"],
    ),
    ("training.model.attention=splash", "spec.training.model.attention", ['given "splash"']),
    (
        "training.model={preset: tiny, seqLen: 100, attention: splash}",
        "spec.training.model.seqLen",
        ["given 100", "a multiple of 128 with attention: splash", "attention: auto"],
    ),
    (
        f"training={{model: {{preset: gptj-6b, attention: cudnn}}, precision: {{compute: bfloat16}}, {REST}}}",
        "spec.training.model.heads",
        ["given 16, which makes heads of 256 values", "a multiple of 8 up to 128 values with attention: cudnn"],
    ),
    (
        f"training={{model: {{preset: tiny, attention: cudnn}}, mesh: {{context: 2}}, {HALF}, {REST}}}",
        "spec.training.mesh.context",
        ["given 2", "1 with attention: cudnn", "attention: auto"],
    ),
    (
        f"training={{model: {{preset: tiny, attention: cudnn, attentionSoftcap: 30}}, {HALF}, {REST}}}",
        "spec.training.model.attentionSoftcap",
        ["given 30.0", "none with attention: cudnn", "attention: auto"],
    ),
    (
        f"training={{model: {{preset: tiny, attention: cudnn, attentionSinks: true}}, {HALF}, {REST}}}",
        "spec.training.model.attentionSinks",
        ["given true", "false with attention: cudnn", "attention: auto"],
    ),
    (
        f"training={{model: {{preset: gpt-oss-20b, attention: cudnn}}, {HALF}, {REST}}}",
        "spec.training.model.attentionSinks",
        ["given true", "false with attention: cudnn", "attention: auto"],
    ),
    (
        f"training={{model: {{preset: gemma2-2b, headSize: 128, attention: cudnn}}, {HALF}, {REST}}}",
        "spec.training.model.attentionSoftcap",
        ["given 50.0", "none with attention: cudnn", "attention: auto"],
    ),
    (
        f"training={{model: {{preset: tiny, seqLen: 256, attention: splash}}, mesh: {{context: 2}}, {REST}}}",
        "spec.training.model.seqLen",
        ["given 256", "a multiple of 512 with attention: splash and context 2", "attention: auto"],
    ),
    (
        f"training={{model: {{preset: gptj-6b, heads: 256}}, {REST}}}",
        "spec.training.model.rotaryDim",
        ["given 64", "an even number up to the head size 16"],
    ),
    (
        f"training={{model: {{preset: pythia-410m, headSize: 8, position: rotary}}, {REST}}}",
        "spec.training.model.rotaryDim",
        ["given 16", "an even number up to the head size 8"],
    ),
    (
        "training.xlaFlags=[--xla_force_host_platform_device_count=8]",
        "spec.training.xlaFlags",
        ['given "--xla_force_host_platform_device_count=8"', "options without it", "hardware.topology's"],
    ),
    (
        "training.xlaFlags=[--xla_tpu_spmd_rng_bit_generator_unsafe]",
        "spec.training.xlaFlags",
        ["options without it", "would depend on the mesh"],
    ),
    (
        "training.xlaFlags=[--xla_cpu_enable_fast_math=true, --xla_cpu_enable_fast_math=false]",
        "spec.training.xlaFlags",
        ["given --xla_cpu_enable_fast_math more than once", "each option once"],
    ),
    (
        "training.xlaFlags=[--xla_tpu_enable_async_collective_fusion, --xla_tpu_overlap_compute_collective_tc=1]",
        "spec.training.xlaFlags",
        ["options without it", "with --xla_tpu_enable_async_collective_fusion it gave not-a-number"],
    ),
    ("training.optimizer.momentum=0.9", "spec.training.optimizer.momentum", ["adamw has no such", "muon has it"]),
    (
        "training.optimizer={name: lion, learningRate: 1e-4, momentum: 0.9}",
        "spec.training.optimizer.momentum",
        ["lion has no such", "muon has it"],
    ),
    (
        "training.optimizer={name: adam, learningRate: 1e-4, weightDecay: 0.1}",
        "spec.training.optimizer.weightDecay",
        ["adam has no such", "adamw"],
    ),
    ("training.optimizer.adamLearningRate=1", "spec.training.optimizer.adamLearningRate", ["muon has it"]),
    (
        "training.optimizer.schedule.warmupSteps=100",
        "spec.training.optimizer.schedule.warmupSteps",
        ["fewer than the run's 100 steps"],
    ),
    (
        "training.optimizer.schedule.decaySteps=9",
        "spec.training.optimizer.schedule.decaySteps",
        ["no decaySteps with kind: constant"],
    ),
    (f"{WSD}}}", "spec.training.optimizer.schedule.decaySteps", ["given nothing", "decaySteps: 10"]),
    (
        f"{WSD}, warmupSteps: 20, decaySteps: 81}}",
        "spec.training.optimizer.schedule.decaySteps",
        ["given 81", "at most the 80 steps"],
    ),
    ("training.evaluation.everySteps=5", "spec.training.evaluation.everySteps", ["neither data.heldOut nor"]),
    (
        "training.badSteps.nonFinite=rollBack",
        "spec.training.badSteps.nonFinite",
        ["recovery.restarts.nonfinite is 0"],
    ),
    (
        "training.precision.products=float8",
        "spec.training.precision.products",
        ["expected compute with compute: float32"],
    ),
    (
        "training={model: {preset: qwen3-30b-a3b}, precision: {compute: bfloat16, products: int8}, " + REST + "}",
        "spec.training.precision.products",
        ["expected compute with experts"],
    ),
    ("training.badSteps.lossSpike=rollBack", "spec.training.badSteps.lossSpike", ["set", "such as 10"]),
    ("training.lora.rank=8", "spec.training.startFrom", ["given nothing", "path and step of weights, with lora"]),
    (
        "training={lora: {rank: 8}, startFrom: {path: base}, model: {preset: tiny}, " + REST + "}",
        "spec.training.startFrom.step",
        ["given nothing", "a step, with lora", "imported ones are step 0"],
    ),
    (
        "training={lora: {rank: 8}, startFrom: {path: base, step: 0, restore: all}, model: {preset: tiny}, "
        + REST
        + "}",
        "spec.training.startFrom.restore",
        ["weights with lora, whose adapters begin anew"],
    ),
    ("training.lora={rank: 0}", "spec.training.lora.rank", ["given 0"]),
    ("training.profile={steps: [12, 10]}", "spec.training.profile.steps", ["given [12, 10]", "[10, 12] traces three"]),
    ("training.profile={steps: [99, 101]}", "spec.training.profile.steps", ["between 1 and the run's 100"]),
    ("training.profile={steps: [9]}", "spec.training.profile.steps", ["2"]),
    ("training.profile={steps: [1, 2], ranks: [0, 7]}", "spec.training.profile.ranks", ["given 7", "expected 0"]),
    (
        "training.checkpoint.keep.everySteps=30",
        "spec.training.checkpoint.keep.everySteps",
        ["checkpoint.everySteps 20", "take 20 or 40"],
    ),
    (
        "training.checkpoint={every: 5m, keep: {everySteps: 30}}",
        "spec.training.checkpoint.keep.everySteps",
        ["checkpoint.everySteps beside it"],
    ),
    (
        "training.data.train=[{name: a, paths: [b]}, {name: a, paths: [c]}]",
        "spec.training.data.train.1.name",
        ['given "a"', "no other source"],
    ),
    (
        "training.evaluation={everySteps: 1, sets: [{name: a, paths: [b]}, {name: a, paths: [c]}]}",
        "spec.training.evaluation.sets.1.name",
        ['given "a"', "no other set"],
    ),
    (
        "training.data.train=[{name: a, paths: [b], chatTemplate: chatml}]",
        "spec.training.data.train.0.chatTemplate",
        ['given "chatml"', "set data.attendAcross: document"],
    ),
    (
        "training.evaluation={everySteps: 1, sets: [{name: a, paths: [b], chatTemplate: llama3}]}",
        "spec.training.evaluation.sets.0.chatTemplate",
        ['given "llama3"', "set data.attendAcross: document"],
    ),
    (
        "training.evaluation={everySteps: 1, sets: [{name: a, paths: [b], questions: true, preferences: true}]}",
        "spec.training.evaluation.sets.0.preferences",
        ["given true", "no preferences with questions", "take one of the two out"],
    ),
    (
        "training.evaluation={everySteps: 1, sets: [{name: a, paths: [b], questions: true, textField: query}]}",
        "spec.training.evaluation.sets.0.textField",
        ['given "query"', "no textField with questions, which reads prompt, choices and answer"],
    ),
    (
        "training.data={attendAcross: document, train: [{name: a, paths: [b], chatTemplate: chatml, textField: t}]}",
        "spec.training.data.train.0.textField",
        ['given "t"', "no textField with chatTemplate"],
    ),
    (
        f"training.data={{attendAcross: document, train: [{PAIRS}]}}",
        "spec.training.data.train.0.preferences",
        ["given true", "startFrom with a step beside it", "imported weights are step 0; loss.preferences: simpo"],
    ),
    (
        f"training={{{TINY}, startFrom: {{path: base}}, data: {{attendAcross: document, train: [{PAIRS}]}}}}",
        "spec.training.data.train.0.preferences",
        ["given true", "startFrom with a step beside it"],
    ),
    (
        f"training={{{TINY}, {WHOLE_STATE}, data: {{attendAcross: document, train: [{PAIRS}]}}}}",
        "spec.training.startFrom.restore",
        ['given "all"', "weights with preferences"],
    ),
    (
        f"training={{{ADAPTERS}, data: {{attendAcross: document, train: [{{name: a, paths: [b], {PREFERENCES}}}]}}}}",
        "spec.training.data.train.0.preferences",
        ["given true", "a chatTemplate beside it"],
    ),
    (
        f"training={{{ADAPTERS}, data: {{attendAcross: document, train: [{PAIRS}, {{name: c, paths: [d]}}]}}}}",
        "spec.training.data.train.1.preferences",
        ["given false", "true for all sources, or for none"],
    ),
    (
        f"training.evaluation={{everySteps: 1, sets: [{PAIRS}]}}",
        "spec.training.evaluation.sets.0.preferences",
        ["given true", "no preferences beside sources of text"],
    ),
    (
        f"training={{{ADAPTERS}, data: {{attendAcross: document, train: [{PAIRS}]}}, loss: {{zLoss: 0.01}}}}",
        "spec.training.loss.zLoss",
        ["given 0.01", "0 with preferences"],
    ),
    ("training.loss.chosenWeight=0.2", "spec.training.loss.chosenWeight", ["given 0.2", "0 without preferences"]),
    ("training.loss.preferences=ipo", "spec.training.loss.preferences", ['given "ipo"', "dpo without preferences"]),
    ("training.loss.labelSmoothing=0.1", "spec.training.loss.labelSmoothing", ["given 0.1", "0 without preferences"]),
    ("training.loss.labelSmoothing=0.5", "spec.training.loss.labelSmoothing", ["given 0.5", "below 0.5"]),
    (
        (
            f"training={{{ADAPTERS}, data: {{attendAcross: document, train: [{PAIRS}]}}, "
            "loss: {preferences: ipo, labelSmoothing: 0.1}}"
        ),
        "spec.training.loss.labelSmoothing",
        ["given 0.1", "0 with preferences: ipo"],
    ),
    (
        (
            f"training={{{ADAPTERS}, data: {{attendAcross: document, train: [{PAIRS}]}}, "
            "loss: {preferences: simpo, margin: 1, labelSmoothing: 0.1}}"
        ),
        "spec.training.loss.labelSmoothing",
        ["given 0.1", "0 with preferences: simpo"],
    ),
    (
        f"training={{{ADAPTERS}, data: {{attendAcross: document, train: [{PAIRS}]}}, loss: {{margin: 1}}}}",
        "spec.training.loss.margin",
        ["given 1", "0 with preferences: dpo", "simpo alone"],
    ),
    (
        f"training={{{TINY}, data: {{attendAcross: document, train: [{PAIRS}]}}, loss: {{preferences: orpo}}}}",
        "spec.training.loss.chosenWeight",
        ["given 0", "above 0 with preferences: orpo", "1 is as it was published"],
    ),
    (
        f"training={{{TINY}, data: {{attendAcross: document, train: [{PAIRS}]}}, loss: {{preferences: cpo}}}}",
        "spec.training.loss.preferences",
        ['given "cpo"', "orpo"],
    ),
    (
        f"training={{{ADAPTERS}, data: {{attendAcross: document, train: [{LABELLED}]}}}}",
        "spec.training.data.train.0.labels",
        ["given true", "loss.preferences: kto with labels", "set loss.preferences: kto"],
    ),
    (
        (
            f"training={{{ADAPTERS}, loss: {{preferences: kto}}, data: {{attendAcross: document, "
            f"train: [{LABELLED[:-1]}, {PREFERENCES}}}]}}}}"
        ),
        "spec.training.data.train.0.labels",
        ["given true", "labels or preferences", "take one of the two out"],
    ),
    (
        f"training={{{TINY}, data: {{attendAcross: document, train: [{LABELLED}]}}, loss: {{preferences: kto}}}}",
        "spec.training.data.train.0.labels",
        ["given true", "startFrom with a step beside it"],
    ),
    (
        (
            f"training={{{ADAPTERS}, data: {{attendAcross: document, train: [{LABELLED}]}}, "
            "loss: {preferences: kto, chosenWeight: 0.1}}"
        ),
        "spec.training.loss.chosenWeight",
        ["given 0.1", "0 with preferences: kto"],
    ),
    ("training.loss.goodWeight=2", "spec.training.loss.goodWeight", ["given 2", "the loss of kto alone"]),
    (
        f"training.data.train=[{PROMPTS}]",
        "spec.training.data.train.0.prompts",
        ["given true", "true with training.reinforcement, and false without"],
    ),
    (
        f"training={{{TINY}, data: {{train: [{{name: a, paths: [b]}}]}}, {REWARD}}}}}",
        "spec.training.data.train.0.prompts",
        ["given false", "true with training.reinforcement"],
    ),
    (
        f"training={{{LEARNING.replace('true', 'true, preferences: true')}, {REWARD}}}}}",
        "spec.training.data.train.0.preferences",
        ["given true", "false with prompts", "take one of the two out"],
    ),
    (
        f"training={{{LEARNING.replace('true', 'true, labels: true')}, {REWARD}}}}}",
        "spec.training.data.train.0.labels",
        ["given true", "false with prompts", "take one of the two out"],
    ),
    (
        f"training={{{LEARNING}, {REWARD}}}, precision: {{products: int8}}}}",
        "spec.training.precision.products",
        ['given "int8"', "compute with reinforcement, whose completions nothing rounds"],
    ),
    (
        f"training={{{LEARNING.replace('true', 'true, textField: question')}, {REWARD}}}}}",
        "spec.training.data.train.0.textField",
        ['given "question"', "no textField with prompts, which reads prompt"],
    ),
    (
        f"training={{{LEARNING.replace(PROMPTS, f'{PROMPTS}, {CHAT_PROMPTS}')}, {REWARD}}}}}",
        "spec.training.data.train.1.chatTemplate",
        ['given "chatml"', "none, as the first source has it: completions all end alike"],
    ),
    (
        f"training={{{LEARNING}, {REWARD.replace('samples: 4', 'samples: 3')}}}}}",
        "spec.training.batch.sequences",
        ["given 16", "a multiple of reinforcement.samples 3", "take 15, 18"],
    ),
    (
        f"training={{{LEARNING}, {REWARD.replace('samples: 4', 'samples: 1')}}}}}",
        "spec.training.reinforcement.samples",
        ["given 1", "an integer from 2 to 4096"],
    ),
    (
        f"training={{{LEARNING.replace('16}', '16, rampUp: [{untilStep: 4, sequences: 8}]}')}, {REWARD}}}}}",
        "spec.training.batch.rampUp.0.sequences",
        ["given 8", "no rampUp with reinforcement"],
    ),
    (
        f"training={{{LEARNING}, {REWARD}, updates: 2}}}}",
        "spec.training.steps",
        ["given 9", "a multiple of reinforcement.updates 2", "take 8, 10"],
    ),
    (
        f"training={{{LEARNING}, {WHOLE_STATE}, {REWARD}, updates: 3}}}}",
        "spec.training.startFrom.step",
        ["given 4", "a multiple of reinforcement.updates 3", "take 3, 6"],
    ),
    (
        f"training={{{LEARNING}, {WHOLE_STATE.replace(', step: 4', '')}, {REWARD}, updates: 3}}}}",
        "spec.training.startFrom.step",
        ["given none", "a multiple of reinforcement.updates 3"],
    ),
    (
        f"training={{{LEARNING}, {REWARD}, updates: 3}}, checkpoint: {{everySteps: 4}}}}",
        "spec.training.checkpoint.everySteps",
        ["given 4", "a multiple of reinforcement.updates 3", "take 3, 6"],
    ),
    (
        f"training={{{LEARNING}, {REWARD}, updates: 3}}, checkpoint: {{local: {{everySteps: 2}}}}}}",
        "spec.training.checkpoint.local.everySteps",
        ["given 2", "a multiple of reinforcement.updates 3"],
    ),
    (
        f"training={{{LEARNING}, {REWARD.replace('maxTokens: 8', 'maxTokens: 999999')}}}}}",
        "spec.training.reinforcement.maxTokens",
        ["given 999999", "fewer than model.seqLen"],
    ),
    (
        f"training={{{LEARNING}, {REWARD.replace('{pattern', '{command: [judge], pattern')}}}}}",
        "spec.training.reinforcement.reward",
        ["given both", "a pattern or a command"],
    ),
    (
        f"training={{{LEARNING}, {REWARD.replace('pattern: (a)', 'within: 5s')}}}}}",
        "spec.training.reinforcement.reward",
        ["given neither", "a pattern or a command"],
    ),
    (
        f"training={{{LEARNING}, {REWARD.replace('(a)', 'a(')}}}}}",
        "spec.training.reinforcement.reward.pattern",
        ['given "a("', "a regular expression of Python: missing )"],
    ),
    (
        f"training={{{LEARNING}, {REWARD.replace('(a)', 'a')}}}}}",
        "spec.training.reinforcement.reward.pattern",
        ['given "a"', "a group in parentheses that has the answer", "such as '#### (.+)'"],
    ),
    (
        f"training={{{LEARNING}, {REWARD}, klWeight: 0.1}}}}",
        "spec.training.reinforcement.klWeight",
        ["given 0.1", "0, or startFrom with a step beside it", "imported weights are step 0"],
    ),
    (
        f"training={{{LEARNING}, {WHOLE_STATE}, {REWARD}, klWeight: 0.1}}}}",
        "spec.training.startFrom.restore",
        ['given "all"', "weights with klWeight"],
    ),
    (
        f"training={{{LEARNING}, {REWARD}}}, mesh: {{pipeline: 2}}}}",
        "spec.training.mesh.pipeline",
        ["given 2", "1 with reinforcement: a pipeline makes no completions"],
    ),
    (
        f"training={{{LEARNING}, {REWARD}}}, mesh: {{context: 2}}}}",
        "spec.training.mesh.context",
        ["given 2", "1 with reinforcement: completions are made of whole sequences"],
    ),
    (
        f"training={{{LEARNING}, {REWARD}}}, loss: {{zLoss: 0.01}}}}",
        "spec.training.loss.zLoss",
        ["given 0.01", "0 with reinforcement"],
    ),
    (
        f"training={{{LEARNING.replace('tiny', 'tiny, dropout: {residual: 0.1}')}, {REWARD}}}}}",
        "spec.training.model.dropout.residual",
        ["given 0.1", "0 with reinforcement: completions are made without dropout"],
    ),
    (
        f"training.evaluation.sets=[{PROMPTS}]",
        "spec.training.evaluation.sets.0.prompts",
        ["given true", "false without training.reinforcement, which says what is worth what"],
    ),
    *(
        (
            f"training={{{LEARNING}, {REWARD}}}, evaluation: {{sets: [{PROMPTS.replace('true', f'true, {more}')}]}}}}",
            f"spec.training.evaluation.sets.0.{more.split(':')[0]}",
            expected,
        )
        for more, expected in (
            ("questions: true", ["given true", "false with prompts", "take one of the two out"]),
            ("preferences: true", ["given true", "false with prompts", "take one of the two out"]),
            ("textField: question", ['given "question"', "no textField with prompts, which reads prompt"]),
            ("chatTemplate: chatml", ['given "chatml"', "none, as the first source has it"]),
        )
    ),
    (
        "training.optimizer={name: adam, learningRate: 1, groups: [{match: a, weightDecay: 0.1}]}",
        "spec.training.optimizer.groups.0.weightDecay",
        ["given 0.1", "adam has no such setting"],
    ),
]

# Overrides of the job with a `pod` section beside it, for clusters.
_FOREIGN = "a folder below a mount of a volume that all hosts share"
_SPEC = "pod.template.spec"
_AGENT = f"{_SPEC}.containers.0"
_MOUNT = f"{_AGENT}.volumeMounts.1.mountPath"
_SIDE = f"{_SPEC}.containers.1={{name: side, image: a"
_LEFT_OUT = "expected it left out; its accelerator class"
_FLAGS = (
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "shareProcessNamespace",
    "automountServiceAccountToken",
    "enableServiceLinks",
)
_PRIVILEGES = (
    ("privileged: true", "privileged"),
    ("allowPrivilegeEscalation: true", "allowPrivilegeEscalation"),
    ("capabilities: {add: [SYS_ADMIN]}", "capabilities.add"),
    ("runAsUser: 0", "runAsUser"),
    ("runAsNonRoot: false", "runAsNonRoot"),
    ("seccompProfile: {type: Unconfined}", "seccompProfile.type"),
)
_AGENT_S = (
    ("image", "a"),
    ("command", "[a]"),
    ("args", "[a]"),
    ("ports", "[{}]"),
    ("securityContext", "{}"),
    ("lifecycle", "{}"),
)
PODS = [
    ("pod={}", "spec.pod.directory", ["given nothing", "a '/'"]),
    ("pod.directory=runs/a", "spec.pod.directory", ['given "runs/a"', "each follow a '/'"]),
    ("pod.directory=/elsewhere", "spec.pod.directory", ['given "/elsewhere"', _FOREIGN, ": /runs"]),
    ("pod.directory=/runs-of-others", "spec.pod.directory", [_FOREIGN]),
    ("pod.directory=/runs/../etc", "spec.pod.directory", [_FOREIGN]),
    (
        f"{_SPEC}.volumes.0={{name: runs, emptyDir: {{}}}}",
        "spec.pod.directory",
        [_FOREIGN, "none that may be written to"],
    ),
    (f"{_AGENT}.volumeMounts.0.readOnly=true", "spec.pod.directory", ["none that may be written to"]),
    (f"{_SPEC}.volumes.0.persistentVolumeClaim.readOnly=true", "spec.pod.directory", ["none that may be written to"]),
    ("pod.template={}", "spec.pod.directory", ["none that may be written to"]),
    ("pod.directory=ftp://runs/a", "spec.pod.directory", ['given "ftp://runs/a"', "gs:/ or s3:/"]),
    ("pod.directory=s3://runs/a", "spec.pod.directory", ["a folder on a volume", "set training.checkpoint.path"]),
    ("training.checkpoint.path=/elsewhere", "spec.training.checkpoint.path", ["a URL, or " + _FOREIGN]),
    ("training.checkpoint.path=checkpoints", "spec.training.checkpoint.path", ["a URL, or " + _FOREIGN]),
    ("training.data.store=/elsewhere", "spec.training.data.store", ["a URL, or " + _FOREIGN]),
    ("training.checkpoint.path=/runs/../etc", "spec.training.checkpoint.path", ["a URL, or " + _FOREIGN]),
    ("pod.image=a b", "spec.pod.image", ["without spaces"]),
    # Fields that `pod` had of its own.
    (
        "pod.env=[]",
        "spec.pod.env",
        ['the unknown key "env"', "spec.pod.template.spec.containers, of the container agent"],
    ),
    ("pod.volumes=[]", "spec.pod.volumes", ["it is in spec.pod.template.spec"]),
    ("pod.labels={a: b}", "spec.pod.labels", ["it is in spec.pod.template.metadata"]),
    ("pod.fsGroup=1", "spec.pod.fsGroup", ["it is in spec.pod.template.spec.securityContext"]),
    ("pod.terminationGracePeriod=1m", "spec.pod.terminationGracePeriod", ["as terminationGracePeriodSeconds"]),
    # The template's shape.
    ("pod.template.spec=a", f"spec.{_SPEC}", ['given "a"', "expected a mapping"]),
    ("pod.template.kind=Pod", "spec.pod.template.kind", ['the unknown key "kind"', "one of metadata, spec"]),
    ("pod.template.metadata.name=a", "spec.pod.template.metadata.name", ["one of labels, annotations"]),
    (f"{_SPEC}.volumes=a", f"spec.{_SPEC}.volumes", ['given "a"', "expected a list"]),
    (f"{_SPEC}.volumes.1={{emptyDir: {{}}}}", f"spec.{_SPEC}.volumes.1.name", ["given nothing", "expected text"]),
    (f"{_SPEC}.volumes.1={{name: a, nfs: {{server: a}}}}", f"spec.{_SPEC}.volumes.1.nfs", ['the unknown key "nfs"']),
    (
        f"{_SPEC}.volumes.1={{name: runs, emptyDir: {{}}}}",
        f"spec.{_SPEC}.volumes.1.name",
        ['given "runs"', "not there"],
    ),
    (f"{_AGENT}.env=[{{name: A, value: 1e3}}]", f"spec.{_AGENT}.env.0.value", ["given 1e3,", 'quote it ("1e3")']),
    (f"{_AGENT}.env=[{{name: A, value: 1}}]", f"spec.{_AGENT}.env.0.value", ["given 1", 'quote it ("1")']),
    (f"{_AGENT}.env=[{{name: A}}, {{name: A}}]", f"spec.{_AGENT}.env.1.name", ['given "A"', "not there yet"]),
    (f"{_AGENT}.volumeMounts.1={{name: runs, mountPath: data/}}", f"spec.{_MOUNT}", ["follow a '/'"]),
    (f"{_AGENT}.volumeMounts.1={{name: runs, mountPath: /runs}}", f"spec.{_MOUNT}", ["not there yet"]),
    (
        f"{_SPEC}.affinity.nodeAffinity={{requiredDuringSchedulingIgnoredDuringExecution: {{}}}}",
        f"spec.{_SPEC}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
        ["given nothing", "expected a list"],
    ),
    # What a template may not have.
    *((f"{_SPEC}.{field}=true", f"spec.{_SPEC}.{field}", ["given true", "expected it left out"]) for field in _FLAGS),
    (
        f"{_SPEC}.volumes.1={{name: a, hostPath: {{path: /}}}}",
        f"spec.{_SPEC}.volumes.1.hostPath",
        ["its accelerator class"],
    ),
    (
        f"{_SPEC}.volumes.1={{name: a, projected: {{sources: [{{serviceAccountToken: {{path: a}}}}]}}}}",
        f"spec.{_SPEC}.volumes.1.projected.sources.0.serviceAccountToken",
        ["no token of the cluster"],
    ),
    (f"{_SPEC}.nodeName=a", f"spec.{_SPEC}.nodeName", ["the scheduler"]),
    (f"{_SPEC}.restartPolicy=Always", f"spec.{_SPEC}.restartPolicy", ["the operator"]),
    (f"{_SPEC}.schedulingGates=[{{name: a}}]", f"spec.{_SPEC}.schedulingGates", ["the operator"]),
    (f"{_SPEC}.terminationGracePeriodSeconds=0", f"spec.{_SPEC}.terminationGracePeriodSeconds", ["time to save"]),
    (f"{_SPEC}.securityContext.runAsUser=1", f"spec.{_SPEC}.securityContext.runAsUser", ["one of fsGroup"]),
    (f"{_SIDE}, ports: [{{hostPort: 80}}]}}", f"spec.{_SPEC}.containers.1.ports.0.hostPort", ["its accelerator class"]),
    *(
        (f"{_SIDE}, securityContext: {{{given}}}}}", f"spec.{_SPEC}.containers.1.securityContext.{field}", [_LEFT_OUT])
        for given, field in _PRIVILEGES
    ),
    (
        f"{_SPEC}.initContainers=[{{name: a, securityContext: {{privileged: true}}}}]",
        f"spec.{_SPEC}.initContainers.0.securityContext.privileged",
        [_LEFT_OUT],
    ),
    # What is ours.
    ("pod.template.metadata.labels={shardwise.dev/job: a}", "spec.pod.template.metadata.labels", ["do not begin"]),
    (
        "pod.template.metadata.annotations={shardwise.dev/x: a}",
        "spec.pod.template.metadata.annotations",
        ["do not begin"],
    ),
    (
        f"{_AGENT}.env=[{{name: JAX_PLATFORMS}}]",
        f"spec.{_AGENT}.env.0.name",
        ["does not begin with SHARDWISE_", "JAX_"],
    ),
    (f"{_AGENT}.volumeMounts.1={{name: runs, mountPath: /etc}}", f"spec.{_MOUNT}", ["a folder apart from"]),
    (f"{_AGENT}.volumeMounts.1={{name: runs, mountPath: /sw/x}}", f"spec.{_MOUNT}", ["a folder apart from"]),
    (f"{_AGENT}.volumeMounts.1={{name: runs, mountPath: /data/../etc}}", f"spec.{_MOUNT}", ["apart from"]),
    *(
        (f"{_AGENT}.{field}={given}", f"spec.{_AGENT}.{field}", ["of the container agent only"])
        for field, given in _AGENT_S
    ),
    (f"{_SPEC}.initContainers=[{{name: agent}}]", f"spec.{_SPEC}.initContainers.0.name", ["another name"]),
    (
        f"{_SPEC}.volumes.1={{name: shardwise-job, emptyDir: {{}}}}",
        f"spec.{_SPEC}.volumes.1.name",
        ["does not begin with"],
    ),
    (
        f"{_SIDE}, volumeMounts: [{{name: shardwise-tokens, mountPath: /a}}]}}",
        f"spec.{_SPEC}.containers.1.volumeMounts.0.name",
        ["one of spec.pod.template.spec.volumes: runs"],
    ),
    ("managedBy=Me", "spec.managedBy", ['given "Me"', "lower-case letters"]),
    ("ttlAfterFinished=never", "spec.ttlAfterFinished", ["a duration such as"]),
    ("suspend=no", "spec.suspend", ["given no", "write true or false"]),
]
