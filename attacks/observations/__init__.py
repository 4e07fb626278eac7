"""What a transcript says of gradients, head gradients and label counts, before any attack."""
