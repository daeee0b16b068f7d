"""Names that other servers use, and misspelt ones, lead to ours."""

from dataclasses import fields

import pytest

from quire.settings.model_config import ModelConfig
from quire.settings.near_names import RENAMED, near_name
from quire.settings.server_config import ServerConfig

SETTINGS = [f.name for config in (ModelConfig, ServerConfig) for f in fields(config)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("block_size", "page_size"),
        ("preemption_mode", "preemption"),
        ("guided_decoding_backend", "structured_outputs_backend"),
        ("num_gpu_blocks_override", "num_pages"),
        ("max_model_length", "max_model_len"),
        ("nothing_like_it", None),
    ],
)
def test_a_name_of_vllm_or_a_misspelt_one_leads_to_the_setting(name: str, meant: str | None) -> None:
    assert near_name(name, SETTINGS) == meant


def test_the_answer_is_spelt_as_the_known_names_are() -> None:
    assert near_name("--block-size", ["--page-size", "--port"]) == "--page-size"


def test_every_renamed_setting_leads_to_one_that_there_is() -> None:
    assert {meant for meant in RENAMED.values()} <= {*SETTINGS, "plugins"}
