"""PyTorch files (torch.save), read without PyTorch and without unpickling."""
