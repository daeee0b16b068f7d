"""What `LLM` does with prompts that are pooled: one task for all of them, and scores of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.errors import BadRequest
from quire.llm_requests import Adapters, Requests
from quire.pooling import POOLING_TASKS, Pooled, PoolingParams
from quire.text.arguments import as_prompts
from quire.text.inputs import PromptInput
from quire.text.pooling_outputs import (
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
from quire.text.scoring import pairs, score, scoring_task
from quire.types import ModelInfo, Prompt

Prompts = PromptInput | Sequence[PromptInput]
Given = PoolingParams | Sequence[PoolingParams] | None
Outputs = list[PoolingRequestOutput[Pooled]]


class PooledCalls:
    """Runs prompts through the poolers of one model in this process."""

    def __init__(self, requests: Requests, info: ModelInfo, task: str = "auto") -> None:
        """task: what the model was loaded for (`ModelConfig.task`)."""
        self._requests, self._info, self._loaded_for = requests, info, task

    def encode(
        self, prompts: Prompts, task: str | None, params: Given, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What a task makes of each prompt, as tensors. task: None = the only one. options: as `LLM.encode`."""
        if task is None:
            task = self._only_task()
            if self._loaded_for == "reward":
                params = params or PoolingParams(use_activation=False)
        return [with_outputs(one, as_tensor(one.outputs)) for one in self._outputs(prompts, task, params, **options)]

    def _only_task(self) -> str:
        """The one task of whole prompts that the model has, or else of their tokens."""
        for tasks in ({"embed", "classify"}, {"token_embed", "token_classify"}):
            found = tasks.intersection(self._info.tasks)
            if len(found) == 1:
                return found.pop()
            if found:
                break
        can = ", ".join(task for task in self._info.tasks if task in POOLING_TASKS) or "none"
        raise BadRequest(f"`pooling_task` must be given; of this model: {can}.", "pooling_task")

    def embed(self, prompts: Prompts, params: Given, **options: Any) -> list[EmbeddingRequestOutput]:
        """Each prompt as a vector."""
        found = self._outputs(prompts, "embed", params, **options)
        return [with_outputs(one, EmbeddingOutput(one.outputs.numbers().tolist())) for one in found]

    def classify(self, prompts: Prompts, params: Given, **options: Any) -> list[ClassificationRequestOutput]:
        """How likely each class is, for each prompt."""
        found = self._outputs(prompts, "classify", params, **options)
        return [with_outputs(one, ClassificationOutput(one.outputs.numbers().tolist())) for one in found]

    def reward(self, prompts: Prompts, params: Given, **options: Any) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Of the whole prompt if the model gives that, else of each token; as it is unless `params` say otherwise."""
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
        made = self._requests.pooled(as_prompts(prompts), truncate_prompt_tokens)
        return self._run(made, _for_task(task, params), lora_request, use_tqdm)

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
        """Of each pair of texts: 1 with 1, 1 with N, or N with N."""
        info = self._info
        task = scoring_task(info.name, info.tasks, info.labels)
        texts = _texts("data_1", first), _texts("data_2", second)
        chosen, matched = _for_task(task, params), pairs(len(texts[0]), len(texts[1]))
        if task == "classify":
            made = self._requests.pairs([(texts[0][i], texts[1][j]) for i, j in matched], truncate_prompt_tokens)
            outputs = self._run(made, chosen, lora_request, use_tqdm)
            return [with_outputs(one, ScoringOutput(float(one.outputs.numbers()[0]))) for one in outputs]
        made = self._requests.pooled([*texts[0], *texts[1]], truncate_prompt_tokens)
        outputs = self._run(made, chosen, lora_request, use_tqdm)
        left, right = outputs[: len(texts[0])], outputs[len(texts[0]) :]
        return [
            with_outputs(right[j], ScoringOutput(score(task, left[i].outputs, right[j].outputs))) for i, j in matched
        ]


def _for_task(task: str, params: PoolingParams | Sequence[PoolingParams] | None) -> Any:
    """The parameters, all for this task."""
    if task not in POOLING_TASKS:
        raise BadRequest(f"`pooling_task` must be one of {', '.join(POOLING_TASKS)}; got {task!r:.40}.", "pooling_task")
    if params is None:
        return PoolingParams(task=task)
    if isinstance(params, PoolingParams):
        return replace(params, task=task)
    return [replace(one, task=task) if isinstance(one, PoolingParams) else one for one in params]


def _texts(name: str, given: Any) -> list[str]:
    """One text or several as a list."""
    texts = [given] if isinstance(given, str | Mapping) else given
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"`{name}` must be a text or a list of texts.", name)
    return list(texts)
