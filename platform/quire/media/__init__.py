"""Images, audio and video of prompts: fetching, decoding, and the limits of both.

An item arrives as a `MediaURL` or a Python object (items). `MediaLoader` (loader) fetches URLs and files with the
`fetching` package into `MediaBytes`, then decodes these with `images`, `audio` or `video` within the `MediaLimits`
of the model (limits). Heavy work (weights) has its own threads. Large images, video, and audio other than plain WAV are
decoded in processes that are killed at the time limit (isolated_media). `containers` opens files with PyAV, `wav` and
`resampling` need no library, and `windows` splits speech.
"""
