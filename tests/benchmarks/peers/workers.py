"""What compare.py starts in the interpreter that has the library: one process for each contender but llama.cpp.

python workers.py quire MODEL JSON-OF-LLM-ARGUMENTS [FOLDER-OF-ADAPTERS]
python workers.py openvino cb|llm MODEL
python workers.py bandwidth
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from workload import Request, Run, answer_questions, measure, warm_up


def quire(model: str, settings: str, adapters: str | None = None) -> None:
    from quire import LLM, LoRARequest, SamplingParams

    arguments = {"max_model_len": 2048, **json.loads(settings)}
    if adapters is not None:
        arguments |= {"enable_lora": True, "max_loras": 8, "max_lora_rank": 16}
    llm = LLM(model=model, **arguments)

    def lora(number: int | None) -> LoRARequest | None:
        return None if number is None else LoRARequest(f"a{number}", number + 1, f"{adapters}/adapter{number}")

    def run(requests: list[Request]) -> float:
        lengths = [request.max_tokens for request in requests]
        params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=n, detokenize=False) for n in lengths]
        prompts = [{"prompt_token_ids": request.prompt} for request in requests]
        loras = [lora(request.adapter) for request in requests] if requests[0].adapter is not None else None
        begin = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=loras)
        took = time.perf_counter() - begin
        assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
        return took

    answer_works(run)


def openvino(kind: str, model: str) -> None:
    """`cb` is ContinuousBatchingPipeline; `llm` is LLMPipeline, which takes one request after the other."""
    answer_works({"cb": continuous_batching, "llm": one_by_one}[kind](model))


def continuous_batching(model: str) -> Run:
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 2, 4096, 256
    scheduler.enable_prefix_caching, scheduler.dynamic_split_fuse = False, True
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": 2})
    numbers = iter(range(sys.maxsize))

    def run(requests: list[Request]) -> float:
        begin = time.perf_counter()
        handles = [pipeline.add_request(next(numbers), ids(request), greedy(request)) for request in requests]
        while pipeline.has_non_finished_requests():
            pipeline.step()
        took = time.perf_counter() - begin
        check_count(sum(len(output.generated_ids) for handle in handles for output in handle.read_all()), requests)
        return took

    return run


def one_by_one(model: str) -> Run:
    import numpy as np
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=2)

    def run(requests: list[Request]) -> float:
        count, begin = 0, time.perf_counter()
        for request in requests:
            tokens = ids(request)
            inputs = openvino_genai.TokenizedInputs(tokens, openvino.Tensor(np.ones_like(tokens.data)))
            count += len(pipeline.generate(inputs, greedy(request)).tokens[0])
        took = time.perf_counter() - begin
        check_count(count, requests)
        return took

    return run


def ids(request: Request) -> Any:
    """An OpenVINO tensor int64 [1, tokens]."""
    import numpy as np
    import openvino

    return openvino.Tensor(np.array([request.prompt], dtype=np.int64))


def greedy(request: Request) -> Any:
    """OpenVINO's settings for exactly `max_tokens` tokens."""
    import openvino_genai

    return openvino_genai.GenerationConfig(max_new_tokens=request.max_tokens, ignore_eos=True, do_sample=False)


def check_count(count: int, requests: list[Request]) -> None:
    expected = sum(request.max_tokens for request in requests)
    assert count >= expected, f"{count} tokens instead of {expected}"


def answer_works(run: Run) -> None:
    warm_up(run)
    answer_questions(lambda work, rep: measure(run, work, rep))


def bandwidth() -> None:
    """Answers every question with the read bandwidth of the moment in GB/s: the best of six reductions of 1 GiB."""
    import torch

    torch.set_num_threads(2)
    numbers = torch.ones(256 * 2**20)
    reductions: list[Callable[[], torch.Tensor]] = [numbers.sum, numbers.max, lambda: torch.dot(numbers, numbers)]

    def seconds(number: int) -> float:
        begin = time.perf_counter()
        reductions[number % 3]()
        return time.perf_counter() - begin

    def read(work: str, rep: int) -> float:
        return numbers.nbytes / min(map(seconds, range(6))) / 1e9

    answer_questions(read)


if __name__ == "__main__":
    known: dict[str, Callable[..., None]] = {"quire": quire, "openvino": openvino, "bandwidth": bandwidth}
    known[sys.argv[1]](*sys.argv[2:])
