"""LoRA on Whisper's encoder, its decoder and what stands between them; peft is the oracle."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from llava_adapted import uses
from whisper_rig import ENGLISH, NO_TIMES, START, TRANSCRIBE, VOCAB, Model, speech

from quire.hooks import registry
from quire.types import Prompt
from quire_adapters.lora_runtime import LoraRuntime

DECODER, ENCODER = r".*model\.decoder\.", r".*model\.encoder\."
MATRICES = r"(q_proj|k_proj|v_proj|out_proj|fc1|fc2)"

ADAPTERS: dict[str, dict[str, Any]] = {
    "usual": {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "all": {"r": 3, "lora_alpha": 6, "target_modules": rf".*{MATRICES}"},
    "encoder": {"r": 5, "lora_alpha": 10, "target_modules": rf"{ENCODER}.*{MATRICES}"},
    "decoder": {"r": 2, "lora_alpha": 6, "target_modules": rf"{DECODER}.*self_attn.*{MATRICES}|{DECODER}.*fc[12]"},
    "cross": {"r": 4, "lora_alpha": 12, "target_modules": rf"{DECODER}.*encoder_attn.*{MATRICES}", "use_dora": True},
    "kept": {"r": 4, "lora_alpha": 8, "target_modules": rf"{DECODER}.*encoder_attn\.[kv]_proj"},
}
IDS = [START, ENGLISH, TRANSCRIBE, NO_TIMES]
SOUNDS = [speech(1), speech(2, 0.6), speech(1)]
TEXTS = [IDS, [START], [START, ENGLISH]]
LENGTH = 16


class Kit:
    """A tiny model, and adapters for it."""

    def __init__(self, folder: Path) -> None:
        self.model = Model(folder / "base")
        self.folders = {name: self._made(folder / name, i, ADAPTERS[name]) for i, name in enumerate(ADAPTERS)}
        self.expected = cache(self._expected)

    def _made(self, folder: Path, seed: int, settings: dict[str, Any]) -> Path:
        from peft import LoraConfig, get_peft_model

        generator = torch.Generator().manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = get_peft_model(self._fresh(), LoraConfig(**settings))
            with torch.no_grad():
                for path, parameter in made.named_parameters():
                    if "lora_" in path and "magnitude" not in path:
                        noise = torch.randn(parameter.shape, generator=generator)
                        parameter.copy_(0.7 * noise / parameter.shape[-1] ** 0.5)
            made.save_pretrained(folder)
        return folder

    def _fresh(self) -> Any:
        from transformers import WhisperForConditionalGeneration

        return WhisperForConditionalGeneration.from_pretrained(
            self.model.folder, dtype=torch.float32, attn_implementation="eager"
        )

    def _expected(self, name: str) -> list[tuple[list[int], torch.Tensor]]:
        """The tokens of peft's answer to each of TEXTS, and their log-probabilities."""
        oracle, found = self._oracle(name), []
        for sound, begin in zip(SOUNDS, TEXTS, strict=True):
            ids = self.model.greedy(sound, begin, LENGTH, model=oracle)
            logits = self.model.logits(sound, [*begin, *ids[:-1]], model=oracle)
            found.append((ids, logits.log_softmax(-1)[len(begin) - 1 :]))
        return found

    def _oracle(self, name: str) -> Any:
        from peft import PeftModel

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PeftModel.from_pretrained(self._fresh(), self.folders[name]).eval() if name else None


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(
    scope="module",
    params=[{"max_num_batched_tokens": 150, "page_size": 16}, {"batch_invariant": True, "max_num_batched_tokens": 90}],
)
def rig(request: pytest.FixtureRequest, kit: Kit) -> Iterator[Rig]:
    found = registry.load(None, enable_lora=True)
    with rig_of(kit.model.folder, found, num_pages=225, **request.param) as made:
        for name, folder in kit.folders.items():
            made.engine.load_adapter(name, folder)
        yield made


def prompts(kit: Kit, rig: Rig) -> list[Prompt]:
    found = registry.load(None)
    return [kit.model.prompt(found, rig.engine.info, sound, text) for sound, text in zip(SOUNDS, TEXTS, strict=True)]


def test_each_adapter_gives_what_peft_gives_in_one_batch_with_the_others_and_the_base(kit: Kit, rig: Rig) -> None:
    asked = {
        (name, i): rig.add(prompt, greedy(LENGTH, ignore_eos=True, logprobs=-1), adapters=uses(name))
        for name in ("", *kit.folders)
        for i, prompt in enumerate(prompts(kit, rig))
    }
    answers = rig.drain()
    outputs = set()
    for name in ("", *kit.folders):
        for i, (ids, expected) in enumerate(kit.expected(name)):
            answer = answers[asked[name, i], 0]
            assert answer.last.error is None
            assert answer.token_ids == ids, (name, i)
            ours = torch.empty(LENGTH, VOCAB)
            for step, entry in enumerate(answer.logprobs):
                ours[step, [token for token, _ in entry.top]] = torch.tensor([logprob for _, logprob in entry.top])
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
            outputs.add((i, tuple(answer.token_ids)))
    assert len(outputs) == len(TEXTS) * (1 + len(kit.folders))


def test_speech_goes_through_the_tower_once_for_each_adapter_that_changes_it(kit: Kit, rig: Rig) -> None:
    prompt = kit.model.prompt(registry.load(None), rig.engine.info, speech(3), IDS)
    before = rig.engine.stats()
    for name in ("", *kit.folders) * 2:
        rig.add(prompt, greedy(2), adapters=uses(name))
        rig.drain()
    stats = rig.engine.stats()
    assert stats.num_media_encoded_total - before.num_media_encoded_total == 1 + len(("usual", "all", "encoder"))
    found = stats.num_media_found_total - before.num_media_found_total
    assert found == len(("decoder", "cross", "kept"))  # the rest is found in the prefix cache


def test_a_runtime_that_fails_where_sources_are_stored_fails_those_requests_only(
    kit: Kit, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = prompts(kit, rig)
    monkeypatch.setattr(LoraRuntime, "bind_step", lambda self, plan, uses: 1 / 0)
    ids = [rig.add(prompt, greedy(4), adapters=uses(name)) for prompt in (first, second) for name in ("", "kept")]
    answers = rig.drain()
    errors = [answers[request_id, 0].last.error for request_id in ids]
    assert errors[0] is errors[2] is None
    assert all("'lora' failed: ZeroDivisionError" in (error or ("", ""))[1] for error in (errors[1], errors[3]))
