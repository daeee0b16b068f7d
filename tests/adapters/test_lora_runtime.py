"""The LoRA runtime: slots, weights, memory, and models that are not in float32."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from lora_rig import Base, Ours, random_seqs
from torch import Tensor

from quire.hooks import registry
from quire.types import AdapterRef, WeightedAdapter
from quire_adapters.lora_runtime import LoadedAdapter

EVERYTHING: dict[str, Any] = {
    "r": 4,
    "lora_alpha": 4,
    "target_modules": ["q_proj", "v_proj", "embed_tokens", "lm_head"],
    "target_parameters": ["gate_up_proj", "down_proj", "gate.weight"],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("lora") / "base", "MixtralForCausalLM")


@pytest.fixture(scope="module")
def folders(base: Base) -> dict[str, Path]:
    """Three adapters that change everything there is, and one that changes little."""
    found = {name: base.adapter(name, like=0.7, **EVERYTHING) for name in "abc"}
    return {**found, "q": base.adapter("q", like=0.7, r=2, target_modules=["q_proj"])}


def loaded(ours: Ours, folders: dict[str, Path]) -> dict[str, LoadedAdapter]:
    return {name: ours.lora.load(name, folder) for name, folder in folders.items()}


# --- slots ---------------------------------------------------------------------------------------------


def test_the_least_recently_released_adapter_is_evicted(base: Base, folders: dict[str, Path]) -> None:
    lora = Ours(base, slots=2).lora
    a, b, c, _ = [lora.load(name, folder) for name, folder in folders.items()]
    assert (lora.acquire_slot(a), lora.acquire_slot(b), lora.acquire_slot(c)) == (0, 1, None)
    lora.release_slot(b)
    lora.release_slot(a)
    assert lora.slots == (a, b)
    assert lora.acquire_slot(b) == 1, "it still has its slot"
    assert lora.acquire_slot(c) == 0
    assert lora.slots == (c, b)
    assert lora.acquire_slot(a) is None
    lora.release_slot(b)
    assert lora.acquire_slot(a) == 1
    lora.release_slot(a)
    lora.release(a)
    assert lora.slots == (c, None)


def test_an_evicted_adapter_leaves_no_weights_in_its_slot(base: Base, folders: dict[str, Path]) -> None:
    seqs, ours = random_seqs(2), Ours(base, slots=1)
    a, _, _, q = loaded(ours, folders).values()
    first = ours.logits(seqs, [{q: 1.0}, {}])
    large = ours.logits(seqs, [{a: 1.0}, {}])
    again = ours.logits(seqs, [{q: 1.0}, {}])
    assert ours.lora.slots == (q,)
    assert not torch.equal(first[0], large[0])
    assert all(map(torch.equal, first, again))
    ours.lora.release(q)
    assert ours.lora.slots == (None,)


def test_what_is_released_is_gone_from_memory(base: Base, folders: dict[str, Path]) -> None:
    ours, seqs = Ours(base, slots=2), random_seqs(2)
    keep = ours.lora.load("keep", folders["b"])
    wanted = ours.logits(seqs, [{keep: 1.0}, {}])
    before = tensor_bytes()
    adapter = ours.lora.load("a", folders["a"])
    ours.logits(seqs, [{adapter: 1.0}, {keep: 1.0}])
    assert tensor_bytes() > before + adapter.metadata.num_bytes // 2
    ours.lora.release(adapter)  # the caller that loaded it still has its handle
    assert tensor_bytes() < before + 1000, "only what says which slot was used in the last step is left"
    assert all(map(torch.equal, ours.logits(seqs, [{keep: 1.0}, {}]), wanted))
    assert tensor_bytes() == before


def tensor_bytes() -> int:
    gc.collect()
    alive = [t for t in gc.get_objects() if issubclass(type(t), Tensor) and t.layout is torch.strided]  # with storage
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}.values())


def test_adapters_are_read_beside_the_steps(base: Base, folders: dict[str, Path], tmp_path: Path) -> None:
    ours, seqs = Ours(base), random_seqs(2)
    dora = base.adapter("dora", like=0.7, r=4, target_modules=["q_proj", "o_proj", "embed_tokens"], use_dora=True)
    found: list[tuple[Path, LoadedAdapter]] = []

    def read() -> None:  # begun before the first step, which packs the weights that DoRA reads
        found.extend([(folder, ours.lora.load("x", folder)) for folder in (dora, folders["a"], dora)])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    plain = ours.logits(seqs, [{}, {}])
    while any(thread.is_alive() for thread in threads):
        assert all(map(torch.equal, plain, ours.logits(seqs, [{}, {}])))
    for thread in threads:
        thread.join()
    fresh = Ours(base)
    wanted = {path: fresh.logits(seqs, [{fresh.lora.load("x", path): 1.0}, {}]) for path in (dora, folders["a"])}
    assert len(found) == 9
    for path, adapter in found:
        assert all(map(torch.equal, ours.logits(seqs, [{adapter: 1.0}, {}]), wanted[path]))


# --- weights -------------------------------------------------------------------------------------------


def test_a_weight_is_a_factor_of_alpha(base: Base, tmp_path: Path) -> None:
    ours, seqs = Ours(base), random_seqs(2)
    folder = base.adapter("once", like=0.5, **EVERYTHING)
    once = ours.lora.load("once", folder)
    config = (folder / "adapter_config.json").read_text()
    assert '"lora_alpha": 4' in config
    (folder / "adapter_config.json").write_text(config.replace('"lora_alpha": 4', '"lora_alpha": -6'))
    other = ours.lora.load("other", folder)
    found, wanted = ours.logits(seqs, [{once: -1.5}, {}]), ours.logits(seqs, [{other: 1.0}, {}])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    nothing = ours.logits(seqs, [{once: 0.0}, {}])
    torch.testing.assert_close(nothing, ours.logits(seqs, [{}, {}]), rtol=0, atol=1e-4)


def test_half_of_a_saved_head_is_halfway_there(tmp_path: Path) -> None:
    base = Base(tmp_path / "base", "LlamaForCausalLM")
    folder = base.adapter(
        "head", r=1, target_modules=["q_proj"], modules_to_save=["lm_head"], alpha_pattern={"q_proj": 0}
    )
    ours, seqs = Ours(base), random_seqs(1)
    head = ours.lora.load("head", folder)
    none, half, whole = (ours.logits(seqs, [{head: weight}])[0] for weight in (0.0, 0.5, 1.0))
    torch.testing.assert_close(half, (none + whole) / 2, rtol=0, atol=1e-4)


def test_several_adapters_on_one_request_add_up_as_peft_joins_them(tmp_path: Path) -> None:
    from peft import PeftModel

    base = Base(tmp_path / "base", "LlamaForCausalLM")
    every = ["q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    folders = [base.adapter(name, like=0.7, r=r, target_modules=every) for name, r in (("a", 3), ("b", 8))]
    ours, seqs = Ours(base), random_seqs(3)
    a, b = (ours.lora.load(folder.name, folder) for folder in folders)
    found = ours.logits(seqs, [{a: 0.5, b: -0.75}, {b: 1.0}, {}])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = PeftModel.from_pretrained(base.reference(), folders[0], adapter_name="a")
        model.load_adapter(folders[1], "b")
        model.add_weighted_adapter(["a", "b"], [0.5, -0.75], "joined", combination_type="cat")
        model.set_adapter("joined")
        wanted = model.eval()(torch.tensor([seqs[0]])).logits[0]
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(found[1], base.oracle(folders[1], [seqs[1]])[0], rtol=0, atol=1e-4)
    assert torch.equal(found[2], ours.logits(seqs, [{}, {}, {}])[2])


# --- other models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=["bfloat16", "int8"])
@pytest.mark.parametrize("use_dora", [False, True], ids=["plain", "DoRA"])
def test_adapters_of_rounded_models_are_as_exact_as_these(
    tmp_path: Path, config: dict[str, Any], use_dora: bool
) -> None:
    base, seqs = Base(tmp_path / "base", "LlamaForCausalLM"), random_seqs(4)
    targets = ["q_proj", "v_proj", "up_proj", "down_proj", "lm_head", "embed_tokens"]
    folder = base.adapter("x", like=0.5, r=8, lora_alpha=8, target_modules=targets, use_dora=use_dora)
    ours = Ours(base, **config)
    adapter = ours.lora.load("x", folder)
    found, plain = ours.logits(seqs, [{adapter: 1.0}] * 4), ours.logits(seqs, [{}] * 4)
    errors = [
        torch.stack([(x - y).square().mean() for x, y in zip(some, base.oracle(wanted, seqs), strict=True)]).mean()
        for some, wanted in ((found, folder), (plain, None))
    ]
    change = torch.stack([(x - y).square().mean() for x, y in zip(found, plain, strict=True)]).mean()
    assert errors[0] < 4 * errors[1] < change


def test_answers_depend_on_no_neighbour_where_batches_are_invariant(base: Base, folders: dict[str, Path]) -> None:
    seqs = random_seqs(5, length=12)
    uses = [(), *((use(name),) for name in "ab"), (use("c"), use("q", -0.5)), (use("q"),)]
    params = greedy(6, ignore_eos=True, logprobs=2, prompt_logprobs=1)

    def ask(rig: Rig, which: range) -> list[tuple[list[int], list[Any]]]:
        ids = [rig.add(seqs[i], params, adapters=uses[i]) for i in which]
        answers = rig.drain()
        return [(answers[id_, 0].token_ids, answers[id_, 0].logprobs) for id_ in ids]

    with rig_of(base.folder, registry.load(None, enable_lora=True), batch_invariant=True) as rig:
        for name, folder in folders.items():
            rig.engine.load_adapter(name, folder)
        together = ask(rig, range(5))
        alone = [answer for i in range(5) for answer in ask(rig, range(i, i + 1))]
    assert together == alone
    assert len({tuple(tokens) for tokens, _ in together}) == 5


def use(name: str, weight: float = 1.0) -> WeightedAdapter:
    return WeightedAdapter(AdapterRef(name=name), weight)


def test_listing_the_plugin_does_not_import_torch() -> None:
    code = (
        "import sys, quire_adapters; list(quire_adapters.quire_adapter_runtimes()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
