"""Audio: models whose prompts have sound, and Whisper. An `*_inputs` module maps samples to log-mel frames and
placeholder ids in the API process.

The encoder turns frames into embeddings in the engine; `whisper_speech` and `chat_transcriber` have the prompts and
segments of transcriptions, `whisper_rules` the logits processor for timestamps.
"""
