"""The library without a server: generate, chat and beam search with a demo model.

Run: python examples/offline.py [MODEL]
"""

import sys

from quire import LLM, BeamSearchParams, SamplingParams


def main(model: str = "demo-chat") -> None:
    """Print answers to a few prompts."""
    with LLM(model=model) as llm:
        prompts = ["The capital of", "The river"]
        for output in llm.generate(prompts, SamplingParams(temperature=0.8, top_p=0.95, max_tokens=12, seed=1)):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")

        conversation = [{"role": "user", "content": "What is 12 plus 30?"}]
        (answer,) = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=40))
        print(f"{conversation[0]['content']!r} -> {answer.outputs[0].text!r}")

        (beams,) = llm.beam_search(prompts[:1], BeamSearchParams(beam_width=3, max_tokens=8))
        for sequence in beams.sequences:
            print(f"{sequence.cum_logprob:8.3f}  {sequence.text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
