"""One session: reads the client's events, and transcribes committed turns in their order, both at the same time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from quire.plugin import AnswerUsage, QuireError, RouterContext, TooLarge
from quire_apis.realtime.bounds import SessionBounds
from quire_apis.realtime.client_events import ClientEvent, EventFault, ReadEvent, read_event
from quire_apis.realtime.dialects import Dialect, Event, OpenAIDialect, Turn, VllmDialect, created
from quire_apis.realtime.pcm import AudioFormat, wav_file
from quire_apis.realtime.settings import MAX_NAME, SessionSettings, updated, updated_old

SMALL = 1 << 16
"""Messages and turns up to this size are read and made on the event loop, others in a worker thread."""

MAX_WAITING = 16
"""Turns that were committed and wait."""

VLLM_FORMAT = AudioFormat(rate=16_000)
NO_USAGE = AnswerUsage(prompt=0, output=0, cached=0, reasoning=0)
NORMAL_CLOSURE = 1000


class RealtimeSession:
    """Answers the events of one WebSocket, which has been accepted and is counted in `bounds`."""

    def __init__(self, socket: WebSocket, context: RouterContext, bounds: SessionBounds, model: str | None) -> None:
        self._socket, self._context, self._bounds = socket, context, bounds
        self._id = f"sess_{uuid.uuid4().hex[:24]}"
        self._max_audio_s: float = context.options["max_audio_s"]
        self._idle_s: float = context.options["idle_timeout_s"]
        self._settings = SessionSettings(model=model)
        self._dialect: Dialect | None = None
        self._buffer = bytearray()
        self._turns: asyncio.Queue[Turn] = asyncio.Queue()
        self._unfinished = 0
        self._waiting_s = 0.0  # of audio in turns that are not finished
        self._last_item: str | None = None
        self.held = 0
        """Bytes of audio that count in `bounds`."""

    async def run(self) -> None:
        """Runs until one side closes; then what is being transcribed is aborted."""
        await self._send([created(self._id, self._settings)])
        tasks = [asyncio.create_task(self._read_all()), asyncio.create_task(self._transcribe_all())]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        except WebSocketDisconnect:
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Reading

    async def _read_all(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    message = await self._socket.receive()
            except TimeoutError:
                if self._unfinished:
                    continue
                reason = f"No event came for {self._idle_s:g} s (--realtime.idle-timeout-s)."
                await self._send(self._events.refused(EventFault("idle_timeout", reason)))
                await self._socket.close(NORMAL_CLOSURE, "idle")
                return
            if message["type"] == "websocket.disconnect":
                return
            await self._on_message(message.get("text"))

    async def _on_message(self, text: str | None) -> None:
        event_id: str | None = None
        try:
            if text is None:
                raise EventFault("invalid_event", "Events are sent as text, not as binary messages.")
            read = read_event(text) if len(text) <= SMALL else await asyncio.to_thread(read_event, text)
            event_id = read.event.event_id
            await self._obey(read)
        except QuireError as error:
            dialect = self._dialect or OpenAIDialect(is_old=False)
            await self._send(dialect.refused(_with_event_id(error, event_id)))

    async def _obey(self, read: ReadEvent) -> None:
        event = read.event
        match event.type:
            case "session.update" | "transcription_session.update":
                await self._update(event)
            case "input_audio_buffer.append":
                self._append(event, read.audio)
            case "input_audio_buffer.commit":
                await self._commit(event.final)
            case "input_audio_buffer.clear":
                self._release(len(self._buffer))
                self._buffer.clear()
                await self._send(self._events.cleared())
            case _:
                raise EventFault("unknown_event", f"The event {event.type!r:.100} is not one of transcription.", "type")

    async def _update(self, event: ClientEvent) -> None:
        old = event.type == "transcription_session.update"
        dialect = self._dialect or _dialect_of(event)
        if isinstance(dialect, VllmDialect):
            settings = self._vllm_settings(event)
        else:
            if not event.has_session:
                raise EventFault("invalid_event", "`session` is needed: an object with the settings.", "session")
            settings = (updated_old if old else updated)(self._settings, event.session)
        if self._buffer and settings.format != self._settings.format:
            raise EventFault("invalid_value", "The format changes only while the buffer is empty: commit or clear it.")
        if settings.model != self._settings.model:
            await self._context.formats(settings.model)  # raises NotFound
        self._dialect, self._settings = dialect, settings
        await self._send(dialect.updated(self._id, settings))

    def _vllm_settings(self, event: ClientEvent) -> SessionSettings:
        if not event.model or len(event.model) > MAX_NAME:
            raise EventFault("invalid_event", "`model` is needed: the name of a model.", "model")
        return replace(self._settings, model=event.model, format=VLLM_FORMAT)

    def _append(self, event: ClientEvent, audio: bytes) -> None:
        if event.audio is None:
            raise EventFault("invalid_event", "`audio` is needed: base64 audio.", "audio")
        seconds = self._settings.format.seconds(len(self._buffer) + len(audio)) + self._waiting_s
        if seconds > self._max_audio_s:
            limit = f"A session may hold {self._max_audio_s:g} s of audio (--realtime.max-audio-s)"
            raise TooLarge(f"{limit}; commit it, and wait for its text.", "audio")
        self._bounds.hold(len(audio))
        self.held += len(audio)
        self._buffer += audio

    async def _commit(self, is_last: bool) -> None:
        dialect = self._events
        is_vllm = isinstance(dialect, VllmDialect)
        if not self._buffer and not is_vllm:
            raise EventFault("input_audio_buffer_commit_empty", "The buffer has no audio.")
        if not self._buffer and not is_last:
            return  # vLLM's clients begin with a commit
        if len(self._buffer) % self._settings.format.sample_bytes:
            raise EventFault(
                "invalid_audio", "The buffer ends within a sample of 16 bits: append the rest, or clear it."
            )
        if self._unfinished >= MAX_WAITING:
            raise EventFault("too_many_turns", f"{MAX_WAITING} turns wait for their text; commit again later.")
        item = f"item_{uuid.uuid4().hex[:24]}"
        turn = Turn(item, self._last_item, bytes(self._buffer), self._settings, is_last or not is_vllm)
        self._last_item = item
        self._buffer.clear()
        await self._send(dialect.committed(turn))
        if self._settings.transcribes:
            self._unfinished += 1
            self._waiting_s += turn.seconds
            self._turns.put_nowait(turn)
        else:
            self._release(len(turn.audio))

    # Transcribing

    async def _transcribe_all(self) -> None:
        while True:
            turn = await self._turns.get()
            try:
                await self._transcribe(turn)
            except QuireError as error:
                await self._send(self._events.failed(turn, error))
            self._unfinished -= 1
            self._waiting_s = self._waiting_s - turn.seconds if self._unfinished else 0.0
            self._release(len(turn.audio))

    async def _transcribe(self, turn: Turn) -> None:
        dialect, parts = self._events, list[str]()
        usage = NO_USAGE
        if turn.audio:
            make = partial(wav_file, turn.audio, turn.settings.format)
            recording = make() if len(turn.audio) <= SMALL else await asyncio.to_thread(make)
            answer = await self._context.transcribe(self._socket, recording, turn.settings.fields())
            async with aclosing(answer.deltas()) as deltas:
                async for delta in deltas:
                    if delta.text:
                        parts.append(delta.text)
                        await self._send(dialect.delta(turn, delta.text))
            usage = answer.usage()
        await self._send(dialect.completed(turn, "".join(parts), usage))

    # Both

    @property
    def _events(self) -> Dialect:
        """The dialect; OpenAI's from the first event on that is not an update."""
        if self._dialect is None:
            self._dialect = OpenAIDialect(is_old=False)
        return self._dialect

    async def _send(self, events: Iterable[Event]) -> None:
        for event in events:
            await self._socket.send_text(msgspec.json.encode(event).decode())

    def _release(self, num_bytes: int) -> None:
        self._bounds.release(num_bytes)
        self.held -= num_bytes


def _dialect_of(update: ClientEvent) -> Dialect:
    """The dialect of a session by its first update: vLLM's has no `session`, and a `model` beside its type."""
    if update.type == "transcription_session.update":
        return OpenAIDialect(is_old=True)
    return VllmDialect() if update.model is not None and not update.has_session else OpenAIDialect(is_old=False)


def _with_event_id(error: QuireError, event_id: str | None) -> QuireError:
    """The error with the id of the client event that caused it, which OpenAI's error events carry."""
    if isinstance(error, EventFault):
        error.event_id = error.event_id or event_id
        return error
    return error
