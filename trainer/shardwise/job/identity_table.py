"""Which fields of a job are part of what its run is, and which are free to change; every field is one of the two."""

from collections.abc import Mapping

TABLE: Mapping[str, tuple[str, str]] = {
    "": ("", "apiVersion kind"),
    "metadata": ("", "name namespace labels annotations"),
    "spec": ("", "deadline suspend preflight ttlAfterFinished managedBy"),
    "spec.pod": ("", "directory image template"),
    "spec.recovery": ("", "backoff hangAfter startWithin replaceWithin minSlices"),
    "spec.recovery.restarts": (
        "",
        """failure nonfinite hang outOfMemory storage device hostLost eviction nodeLost maintenance admission image
        unknown""",
    ),
    "spec.hardware": ("", "accelerator topology slices"),
    "spec.program": ("", "module command args env workdir"),
    "spec.training": ("seed xlaFlags", "steps"),
    "spec.training.model": (
        """layers heads kvHeads headSize embed mlp seqLen vocabSize block norm preNorm postNorm qkNorm qkNormOver
        activation position rotaryDim rotaryPairs ropeTheta localRopeTheta rotaryPattern tiedHead headBias
        attentionBias attentionOutBias attentionSinks mlpBias queryPreAttnScalar attentionSoftcap logitSoftcap
        slidingWindow slidingWindowPattern scaleEmbedding embeddingFactor residualFactor logitDivisor
        scaleByInverseLayer normEpsilon initStd""",
        "preset remat attention",
    ),
    "spec.training.model.ropeScaling": (
        """kind factor originalSeqLen lowFrequencyFactor highFrequencyFactor betaSlow betaFast attentionFactor truncate
        shortFactors longFactors""",
        "",
    ),
    "spec.training.model.experts": (
        """count perToken score shareOne shareFactor pickBias biasRate groups groupsPerToken groupScore shared
        sharedGate routerBias denseBlocks denseMlp balance""",
        "",
    ),
    "spec.training.model.latent": ("kvRank qRank valueSize normEpsilon", ""),
    "spec.training.model.dropout": ("embed residual attention", ""),
    "spec.training.data": ("tokenizer beginToken endToken attendAcross heldOut leaveOut dedup", "store"),
    "spec.training.data.train.*": (
        "name weight epochs textField chatTemplate preferences labels prompts leaveOut",
        "paths",
    ),
    "spec.training.data.phases.*": ("fromStep weights", ""),
    "spec.training.mesh": ("", "tensor fsdp replica dataInner expert context contextStrategy pipeline pipelineRounds"),
    "spec.training.batch": ("sequences", "microbatches"),
    "spec.training.batch.rampUp.*": ("untilStep sequences", ""),
    "spec.training.optimizer": (
        "name learningRate beta1 beta2 epsilon weightDecay clipNorm momentum adamLearningRate",
        "memory",
    ),
    "spec.training.optimizer.average": ("decay", ""),
    "spec.training.optimizer.groups.*": ("match rateFactor weightDecay", ""),
    "spec.training.optimizer.schedule": ("kind warmupSteps decaySteps finalRatio", ""),
    "spec.training.precision": ("params compute output products reduce", ""),
    "spec.training.loss": (
        "zLoss beta preferences margin labelSmoothing chosenWeight goodWeight badWeight",
        "blockTokens",
    ),
    "spec.training.reinforcement": (
        "samples maxTokens advantage average temperature updates clipLow clipHigh klWeight",
        "",
    ),
    "spec.training.reinforcement.reward": ("pattern field", "command within"),
    "spec.training.startFrom": ("step restore", "path"),
    "spec.training.lora": ("rank alpha mlp", ""),
    "spec.training.checkpoint": ("", "path every everySteps"),
    "spec.training.checkpoint.keep": ("", "last everySteps"),
    "spec.training.checkpoint.local": ("", "everySteps"),
    "spec.training.evaluation": ("", "everySteps batches"),
    "spec.training.evaluation.sets.*": (
        "",
        "name paths textField chatTemplate preferences labels questions prompts batches",
    ),
    "spec.training.badSteps": ("", "nonFinite lossSpike sigmas window maxSkips"),
    "spec.training.profile": ("", "steps ranks"),
    "spec.training.tracking": ("", "tensorboard wandbProject mlflowExperiment trackioProject"),
}
"""By group: the fields that are part of the identity, and those that are not."""
