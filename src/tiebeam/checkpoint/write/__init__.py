"""Write safetensors and GGUF files from byte ranges of existing files."""
