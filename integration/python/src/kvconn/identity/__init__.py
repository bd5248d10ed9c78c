"""What tells the KV of one model from another's: digests of its weights, whichever engine runs it."""
