"""Models on the Hugging Face Hub, read from the local cache or by HTTP range requests."""
