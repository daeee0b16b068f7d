"""The methods of `platform quantize`: each yields quantized matrices by name, and tensors that it changes."""
