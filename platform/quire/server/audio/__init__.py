"""The endpoints that transcribe and translate recordings of speech.

A route (`routes`) reads the form; `transcription.prepare` decodes the recording and splits it into windows. All windows
become engine requests of one job. Its text is returned as a whole or streamed in the order of the recording (`stream`).
"""
