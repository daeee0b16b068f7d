"""Exports a model to OpenVINO in 4 bits, symmetric, groups of 64, with its tokenizer: export_openvino.py MODEL OUT

Needs an interpreter that has optimum-intel and openvino-tokenizers, and no torchvision.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()

    import openvino
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoTokenizer

    quantization = OVWeightQuantizationConfig(bits=4, sym=True, group_size=64, ratio=1.0)
    model = OVModelForCausalLM.from_pretrained(args.model, export=True, compile=False, quantization_config=quantization)
    model.save_pretrained(args.out)
    parts = convert_tokenizer(AutoTokenizer.from_pretrained(args.model), with_detokenizer=True)
    for name, part in zip(("tokenizer", "detokenizer"), parts, strict=True):
        openvino.save_model(part, args.out / f"openvino_{name}.xml")


if __name__ == "__main__":
    main()
