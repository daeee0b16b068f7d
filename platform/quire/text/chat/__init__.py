"""Conversations to prompt texts.

`messages` validates the messages of the OpenAI API and normalizes them for templates; `media_parts` reads the parts
that are images, audio or video. `templates` renders the chat template of a model; the rendering itself runs in sandbox
processes (`template_pool`, `template_worker`). `chat_choice` picks the template, or the tokenizer library that encodes
chats without one.
"""
