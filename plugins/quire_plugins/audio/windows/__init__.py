"""Models that hear windows of audio with an encoder like that of Whisper: Voxtral, Audio Flamingo 3, GLM-ASR."""
