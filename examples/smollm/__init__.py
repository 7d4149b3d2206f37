"""A small Llama-style model in numpy whose KV cache may come from elsewhere, layer by layer."""
