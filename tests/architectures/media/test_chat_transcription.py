"""Models that take audio in chats write down speech: Granite Speech and GLM-ASR."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from qwen_audio_rig import CHAT_TEMPLATE, RATE, sound
from sound_families import families
from sound_model import SoundModel

from quire import LLM, SamplingParams
from quire.errors import BadRequest
from quire.hooks import registry
from quire.records import SpeechTask, TranscriberImpl
from quire.text.inputs.context import model_context
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo
from quire_testing.tiny import byte_tokenizer

AS_TEXT = "{% for message in messages %}<|user|>{{ message['content'] }}<|end|>{% endfor %}<|assistant|>"


def transcriber(architecture: str, folder: Path, template: str | None) -> TranscriberImpl:
    byte_tokenizer(folder, template)
    found = registry.load(None)
    records = [one for one in found.all("quire_transcribers") if one.architecture == architecture]
    info = dict.fromkeys(("name", "root", "architecture", "dtype", "device"), "tiny")
    sizes = dict.fromkeys(("max_model_len", "vocab_size", "num_pages", "page_size", "num_parameters"), 300)
    model = ModelInfo(**info, **sizes, folder=str(folder), aliases=(), eos_ids=())
    context = model_context(
        found, found.plugin_of("quire_transcribers", records[0].name), model, Tokenizer.load(folder)
    )
    built: TranscriberImpl = records[0].build(context)
    return built


def test_prompts_of_granite_speech_transcribe_or_translate(tmp_path: Path) -> None:
    asks = transcriber("GraniteSpeechForConditionalGeneration", tmp_path, AS_TEXT)
    tokenizer = Tokenizer.load(tmp_path)
    for task, words in (
        (SpeechTask(language="de"), "can you transcribe the speech into a written format?"),
        (SpeechTask(translate=True), "translate the speech to English"),
        (SpeechTask(translate=True, to_language="fr"), "translate the speech to French"),
    ):
        assert tokenizer.decode(asks.prompt(task), skip_special_tokens=False) == (
            f"<|user|><|audio|>{words}<|end|><|assistant|>"
        )
    (segment,) = asks.segments([5, 6], SpeechTask())
    assert (segment.begin, segment.end, segment.text_ids) == (0, 2, (5, 6))
    with pytest.raises(BadRequest, match="`prompt`"):
        asks.prompt(SpeechTask(previous="before"))
    with pytest.raises(BadRequest, match="`response_format`"):
        asks.prompt(SpeechTask(timestamps=True))


def test_glm_asr_gets_its_audio_as_a_part_of_a_message(tmp_path: Path) -> None:
    asks = transcriber("GlmAsrForConditionalGeneration", tmp_path, CHAT_TEMPLATE)
    found = Tokenizer.load(tmp_path).decode(asks.prompt(SpeechTask()), skip_special_tokens=False)
    assert found == (
        "<|user|><|audio_bos|><|AUDIO|><|audio_eos|>Please transcribe this audio into text<|end|><|assistant|>"
    )


def test_prompts_of_qwen3_asr_name_the_language_and_the_context(tmp_path: Path) -> None:
    asks = transcriber("Qwen3ASRForConditionalGeneration", tmp_path, None)
    found = Tokenizer.load(tmp_path).decode(asks.prompt(SpeechTask(language="de", previous=" Ada ")))
    assert found == (
        "<|im_start|>system\nAda<|im_end|>\n<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n"
        "<|im_start|>assistant\nlanguage German<asr_text>"
    )
    with pytest.raises(BadRequest, match="set `language`"):
        asks.prompt(SpeechTask())


def test_without_a_chat_template_speech_to_text_is_refused(tmp_path: Path) -> None:
    asks = transcriber("GlmAsrForConditionalGeneration", tmp_path, None)
    with pytest.raises(BadRequest, match="no chat template"):
        asks.prompt(SpeechTask())


def test_a_transcript_is_the_answer_to_the_prompt_with_the_audio(tmp_path: Path) -> None:
    model = SoundModel(tmp_path, families()["granite-speech"])
    path = model.folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": AS_TEXT}))
    heard = (sound(5, 0.8).samples, RATE)
    text = "<|user|><|audio|>can you transcribe the speech into a written format?<|end|><|assistant|>"
    params = SamplingParams(temperature=0, max_tokens=12)
    with LLM(str(model.folder), enable_lora=True, dtype="float32", num_pages=64, max_model_len=256) as llm:
        (answer,) = llm.generate([{"prompt": text, "multi_modal_data": {"audio": heard}}], params)
        (transcript,) = llm.transcribe([heard], sampling_params=params)
    assert transcript.text == answer.outputs[0].text.strip()
