"""From a decision to token ids, and from logits to probabilities. Numpy only: no HTTP, no llama.cpp."""
