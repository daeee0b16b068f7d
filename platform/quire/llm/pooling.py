"""The pooling methods of `LLM`: embed, classify, reward, encode and score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.errors import BadRequest
from quire.llm.arguments import as_prompts
from quire.llm.requests import Adapters, OfflineRequests
from quire.params.pooling import POOLING_TASKS, PoolingParams, PoolingResult
from quire.text.inputs.inputs import PromptInput
from quire.text.outputs.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    as_tensor,
    with_outputs,
)
from quire.text.outputs.scoring import pairs, score, scoring_task
from quire.types import ModelInfo, Prompt

Prompts = PromptInput | Sequence[PromptInput]
Given = PoolingParams | Sequence[PoolingParams] | None
Outputs = list[PoolingRequestOutput[PoolingResult]]


class OfflinePooling:
    """Pools prompts with one model in this process. task: the task it was loaded for (`ModelConfig.task`)."""

    def __init__(self, requests: OfflineRequests, info: ModelInfo, task: str = "auto") -> None:
        self._requests, self._info, self._loaded_for = requests, info, task

    def encode(
        self, prompts: Prompts, task: str | None, params: Given, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The pooled tensors of the prompts. task: None = the model's only one. options: as for `LLM.encode`."""
        if task is None:
            task = self._only_task()
            if self._loaded_for == "reward":
                params = params or PoolingParams(use_activation=False)
        return [with_outputs(one, as_tensor(one.outputs)) for one in self._outputs(prompts, task, params, **options)]

    def _only_task(self) -> str:
        """The model's only task for whole prompts, or else its only task for tokens."""
        for tasks in ({"embed", "classify"}, {"token_embed", "token_classify"}):
            found = tasks.intersection(self._info.tasks)
            if len(found) == 1:
                return found.pop()
            if found:
                break
        can = ", ".join(task for task in self._info.tasks if task in POOLING_TASKS) or "none"
        raise BadRequest(f"`pooling_task` must be given; of this model: {can}.", "pooling_task")

    def embed(self, prompts: Prompts, params: Given, **options: Any) -> list[EmbeddingRequestOutput]:
        found = self._outputs(prompts, "embed", params, **options)
        return [with_outputs(one, EmbeddingOutput(one.outputs.numbers().tolist())) for one in found]

    def classify(self, prompts: Prompts, params: Given, **options: Any) -> list[ClassificationRequestOutput]:
        found = self._outputs(prompts, "classify", params, **options)
        return [with_outputs(one, ClassificationOutput(one.outputs.numbers().tolist())) for one in found]

    def reward(self, prompts: Prompts, params: Given, **options: Any) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Rewards of whole prompts if the model has them, else of tokens; without activation unless `params` ask."""
        task = "classify" if "classify" in self._info.tasks else "token_classify"
        return self.encode(prompts, task, params or PoolingParams(use_activation=False), **options)

    def _outputs(
        self,
        prompts: Prompts,
        task: str,
        params: Given,
        *,
        lora_request: Adapters = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> Outputs:
        built = self._requests.pooling_prompts(as_prompts(prompts), truncate_prompt_tokens)
        return self._run(built, _for_task(task, params), lora_request, use_tqdm)

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: PoolingParams | Sequence[PoolingParams],
        lora_request: Adapters,
        use_tqdm: bool,
    ) -> Outputs:
        return self._requests.finish(self._requests.submit(prompts, params, lora_request), use_tqdm)

    def score(
        self,
        first: Any,
        second: Any,
        params: PoolingParams | None,
        *,
        lora_request: Adapters = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """The score of each pair of texts: 1 with 1, 1 with N, or N with N."""
        info = self._info
        task = scoring_task(info.name, info.tasks, info.labels)
        texts = _texts("data_1", first), _texts("data_2", second)
        chosen, matched = _for_task(task, params), pairs(len(texts[0]), len(texts[1]))
        if task == "classify":
            prompts = self._requests.pairs([(texts[0][i], texts[1][j]) for i, j in matched], truncate_prompt_tokens)
            outputs = self._run(prompts, chosen, lora_request, use_tqdm)
            return [with_outputs(one, ScoringOutput(float(one.outputs.numbers()[0]))) for one in outputs]
        prompts = self._requests.pooling_prompts([*texts[0], *texts[1]], truncate_prompt_tokens)
        outputs = self._run(prompts, chosen, lora_request, use_tqdm)
        left, right = outputs[: len(texts[0])], outputs[len(texts[0]) :]
        return [
            with_outputs(right[j], ScoringOutput(score(task, left[i].outputs, right[j].outputs))) for i, j in matched
        ]


def _for_task(task: str, params: PoolingParams | Sequence[PoolingParams] | None) -> Any:
    """The parameters with their task set to `task`."""
    if task not in POOLING_TASKS:
        raise BadRequest(f"`pooling_task` must be one of {', '.join(POOLING_TASKS)}; got {task!r:.40}.", "pooling_task")
    if params is None:
        return PoolingParams(task=task)
    if isinstance(params, PoolingParams):
        return replace(params, task=task)
    return [replace(one, task=task) if isinstance(one, PoolingParams) else one for one in params]


def _texts(name: str, given: Any) -> list[str]:
    """A list of texts from one text or several."""
    texts = [given] if isinstance(given, str | Mapping) else given
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"`{name}` must be a text or a list of texts.", name)
    return list(texts)
