"""`platform adapters extract`: a LoRA adapter of the difference of two checkpoints, or of another kind of adapter."""

import json
import warnings

import pytest
import torch
from lora_rig import Base, Ours, random_seqs
from safetensors.torch import load_file, save_file

from quire.cli import main
from quire_adapter_tools.extraction import Extraction, adapter_config
from quire_adapter_tools.low_rank import truncated


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("models") / "base", "LlamaForCausalLM")


def tune(base, folder, change):
    """A copy of the checkpoint whose tensors `change` may alter in place."""
    folder.mkdir()
    for file in base.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(base.folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    for name, tensor in tensors.items():
        change(name, tensor, generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def matrices(name, tensor, generator):
    if tensor.dim() == 2:
        tensor += 0.05 * torch.randn(tensor.shape, generator=generator)


def logits(base, folder=None, adapter=None):
    here = Ours(base, max_rank=256) if folder is None else None
    if here is None:
        other = object.__new__(Base)
        other.folder = folder
        here = Ours(other)
    uses = [{here.lora.load("a", adapter): 1.0}] * 2 if adapter else [{}, {}]
    return torch.cat(here.logits(random_seqs(2), uses))


def test_without_truncation_the_adapter_makes_the_tuned_model_of_the_base(base, tmp_path, capsys):
    tuned = tune(base, tmp_path / "tuned", matrices)
    words = [str(base.folder), str(tuned), str(tmp_path / "out"), "--rank", "256"]
    assert main(["adapters", "extract", *words]) == 0
    assert "leaves 0.00% of the difference" in capsys.readouterr().out
    torch.testing.assert_close(logits(base, adapter=tmp_path / "out"), logits(base, tuned), rtol=1e-3, atol=2e-3)


def test_a_truncated_adapter_makes_the_best_model_of_its_rank_and_the_error_is_printed(base, tmp_path, capsys):
    tuned, best = tune(base, tmp_path / "tuned", matrices), tmp_path / "best"
    before, after = (load_file(folder / "model.safetensors") for folder in (base.folder, tuned))
    total, left = 0.0, 0.0

    def truncate(name, tensor, _):
        nonlocal total, left
        if tensor.dim() == 2:
            u, s, v = torch.linalg.svd((after[name] - before[name]).double(), full_matrices=False)
            tensor += ((u[:, :3] * s[:3]) @ v[:3]).float()
            total, left = total + float(s.square().sum()), left + float(s[3:].square().sum())

    tune(base, best, truncate)
    words = [str(base.folder), str(tuned), str(tmp_path / "out"), "--rank", "3"]
    assert main(["adapters", "extract", *words]) == 0
    assert f"leaves {(left / total) ** 0.5:.2%} of the difference" in capsys.readouterr().out
    torch.testing.assert_close(logits(base, adapter=tmp_path / "out"), logits(base, best), rtol=1e-3, atol=2e-3)


def test_energy_gives_each_matrix_the_smallest_rank_that_keeps_it():
    u, _ = torch.linalg.qr(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))
    d = u @ torch.diag(torch.tensor([3.0, 2.0, 1.0])) @ torch.eye(3, 6)
    assert [truncated(d, 6, share, torch.float32).rank for share in (0.6, 0.7, 0.93, 0.99)] == [1, 2, 3, 3]
    assert truncated(d, 6, 0.9, torch.float32).error == pytest.approx((1 / 14) ** 0.5, rel=1e-4)
    config = adapter_config({"a.q": 2, "b.q": 2, "c.q": 1}, "base", transposed=False)
    assert (config["r"], config["rank_pattern"], config["alpha_pattern"]) == (2, {"c.q": 1}, {"c.q": 1})


def test_only_the_largest_singular_values_of_a_large_matrix_are_computed(monkeypatch):
    monkeypatch.setattr("quire_adapter_tools.low_rank.EXACT", 16)
    generator = torch.Generator().manual_seed(0)
    d = torch.randn(300, 5, generator=generator) @ torch.randn(5, 200, generator=generator)
    d += 1e-3 * torch.randn(300, 200, generator=generator)
    best = float(torch.linalg.svdvals(d.double())[5:].square().sum()) ** 0.5
    assert truncated(d, 5, 1.0, torch.float32).residual == pytest.approx(best, rel=1e-3)


def test_tensors_that_no_adapter_can_change_are_named(base, tmp_path, capsys):
    def norms_and_q(name, tensor, generator):
        if "layers.1" in name and ("input_layernorm" in name or "q_proj" in name):
            tensor += 0.1

    tuned = tune(base, tmp_path / "tuned", norms_and_q)
    assert main(["adapters", "extract", str(base.folder), str(tuned), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "Not part of the adapter, though they differ: model.layers.1.input_layernorm.weight." in said
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["model.layers.1.self_attn.q_proj"]


def test_equal_or_different_models_are_refused(base, tmp_path, capsys):
    assert main(["adapters", "extract", str(base.folder), str(base.folder), str(tmp_path / "out")]) == 2
    assert "No matrix differs" in capsys.readouterr().err
    other = Base(tmp_path / "other", "LlamaForCausalLM", num_hidden_layers=1)
    assert main(["adapters", "extract", str(base.folder), str(other.folder), str(tmp_path / "out")]) == 2
    assert "both must be of the same architecture" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["LoHaConfig", "LoKrConfig"])
def test_an_adapter_of_a_kind_that_is_not_run_becomes_one_that_is(base, kind, tmp_path, capsys):
    import peft

    torch.manual_seed(0)  # for init_weights=False

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(peft, kind)(r=2, alpha=4, target_modules=["q_proj", "down_proj"], init_weights=False)
        model = peft.get_peft_model(base.reference(), config)
        model.save_pretrained(tmp_path / "kind")
        assert (
            main(
                ["adapters", "extract", str(base.folder), str(tmp_path / "kind"), str(tmp_path / "out"), "--rank", "64"]
            )
            == 0
        )
        with torch.inference_mode():
            expected = torch.cat([model.eval()(torch.tensor([seq])).logits[0] for seq in random_seqs(2)])
    assert "leaves 0.00%" in capsys.readouterr().out
    torch.testing.assert_close(
        logits(base, adapter=tmp_path / "out"), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())
    )


def test_peft_reads_the_extracted_adapter(base, tmp_path):
    tuned = tune(base, tmp_path / "tuned", matrices)
    assert main(["adapters", "extract", str(base.folder), str(tuned), str(tmp_path / "out"), "--rank", "5"]) == 0
    expected = torch.cat(base.oracle(tmp_path / "out", random_seqs(2)))
    torch.testing.assert_close(logits(base, adapter=tmp_path / "out"), expected, rtol=1e-3, atol=2e-3)


def test_the_error_is_that_of_all_matrices_together():
    result = Extraction(squares={"a": (9.0, 1.0), "b": (16.0, 0.0)})
    assert (result.error, result.worst) == (pytest.approx(0.2), ("a", pytest.approx(1 / 3)))
