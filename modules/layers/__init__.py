"""Where tensors lie while a model trains: quantized layers, block swapping, offloaded activations, pinned memory."""
