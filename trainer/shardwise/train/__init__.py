"""The trainer: model, data, optimizer, step and checkpoints over a device mesh."""
