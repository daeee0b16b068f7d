"""Conformance of transcribers: every task has a valid prompt, valid parameters, and segments in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from quire.errors import BadRequest
from quire.params.sampling import SamplingParams
from quire.records import Context, Segment, SpeechTask, Transcriber, TranscriberImpl
from quire_testing.require import require


def check_transcriber(
    record: Transcriber, context: Context, answers: Mapping[str, Sequence[int]] | Sequence[Sequence[int]] = ()
) -> None:
    """Prompts and parameters are valid, segments lie in order within the answer, and every call gives the same twice.

    context: with the tokenizer, config, folder and options that the transcriber reads. answers: token ids of answers
    to try, as the model writes them.
    """
    transcriber = record.build(context)
    require(transcriber.sampling_rate > 0, f"The sampling rate is {transcriber.sampling_rate}; it must be above 0.")
    require(transcriber.window_s > 0, f"A window has {transcriber.window_s} seconds; it must have more than 0.")
    vocab_size = context.vocab_size or context.tokenizer.vocab_size
    _check_detection(transcriber, vocab_size)
    num_done = 0
    for task in _tasks(record, transcriber):
        try:
            prompt = list(transcriber.prompt(task))
        except BadRequest:
            continue
        num_done += 1
        require(prompt == list(transcriber.prompt(task)), f"{task} has another prompt the second time.")
        require(all(0 <= i < vocab_size for i in prompt), f"The prompt of {task} has ids beyond the vocabulary.")
        params = transcriber.params(task)
        require(params == transcriber.params(task), f"{task} has other parameters the second time.")
        SamplingParams(**params)
        for ids in answers.values() if isinstance(answers, Mapping) else answers:
            _check_segments(transcriber.segments(ids, task), ids, task, transcriber.window_s)
        require(not transcriber.segments((), task), "An empty answer has no segments.")
    require(num_done > 0, f"{record.name} refuses every task with BadRequest.")


def _tasks(record: Transcriber, transcriber: TranscriberImpl) -> Iterator[SpeechTask]:
    detects = transcriber.language_detection() is not None or not transcriber.languages
    languages = [*transcriber.languages, *([None] if detects else [])]
    for language in languages:
        for timestamps in (False, True):
            for previous in ("", "Before."):
                yield SpeechTask(language=language, timestamps=timestamps, previous=previous)
                if record.translates:
                    yield SpeechTask(language=language, timestamps=timestamps, previous=previous, translate=True)


def _check_detection(transcriber: TranscriberImpl, vocab_size: int) -> None:
    found = transcriber.language_detection()
    if found is None:
        return
    ids = [*found.prompt_ids, *found.languages, *([] if found.silence_id is None else [found.silence_id])]
    require(all(0 <= i < vocab_size for i in ids), "Language detection has ids beyond the vocabulary.")
    require(found.languages, "Language detection has no languages to choose from.")
    unknown = sorted(set(found.languages.values()) - set(transcriber.languages))
    require(not unknown, f"Language detection may find {', '.join(unknown)}, which `languages` does not have.")


def _check_segments(segments: Sequence[Segment], ids: Sequence[int], task: SpeechTask, window_s: float) -> None:
    for segment in segments:
        require(0 <= segment.begin <= segment.end <= len(ids), f"{segment} is not within {len(ids)} tokens.")
        own = list(ids[segment.begin : segment.end])
        require(set(segment.text_ids) <= set(own), f"{segment} has text ids that are not among its tokens.")
        for time in (segment.start_s, segment.end_s):
            require(time is None or 0 <= time <= window_s, f"{segment} is not within the window of {window_s} s.")
    for first, second in pairwise(segments):
        require(first.end <= second.begin, f"{first} and {second} overlap.")
    require(task.timestamps or len(segments) <= 1, f"Without timestamps there is one segment; got {len(segments)}.")
