"""How layers compute and where tensors lie while a model trains: LoRA, quantized layers, block swapping, offloading."""
