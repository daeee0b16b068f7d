"""Encoder-decoders for text: the prompt is the text of the encoder, the answer that of the decoder."""
