"""Training data: files to documents, documents to cached tokens, tokens to batches. numpy only, no JAX."""
