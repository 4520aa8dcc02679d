"""Checkpoints that distributed training wrote: torch DCP, DeepSpeed, one PyTorch file per rank."""
