"""Images, audio and video of prompts: fetching, decoding, and the limits of both.

An item arrives as a `MediaURL` or a Python object (items). `MediaLoader` (loader) fetches URLs and files with the
`fetching` package into `MediaBytes`, then decodes these with `images`, `audio` or `video` within the `MediaLimits`
of the model (limits). Heavy work (weights) has its own threads, and large images are decoded in a process
(large_images). `containers` opens files with PyAV, `wav` and `resampling` need no library, and `windows` splits speech.
"""
