"""File formats: each module turns one file into a header, a table of tensors at byte ranges."""
