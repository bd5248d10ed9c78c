from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import vllm_fields

from kvconn.vllm import settings

GROUPS = (vllm_fields.MANIFEST, vllm_fields.REFUSED, vllm_fields.OTHER)
OWNERS = {
    "model": "ModelConfig",
    "load": "LoadConfig",
    "cache": "CacheConfig",
    "attention": "AttentionConfig",
    "speculative": "SpeculativeConfig",
}


def test_no_setting_is_in_two_places() -> None:
    for owner in vllm_fields.MANIFEST:
        listed = [field for group in GROUPS for field in group.get(owner, "").split()]
        assert len(listed) == len(set(listed)), owner


def test_the_number_of_settings_is_in_the_decision_record() -> None:
    number = sum(len(fields.split()) for group in GROUPS for fields in group.values())
    adr = Path(__file__).parents[3] / "docs" / "adr" / "0010-identity.md"
    assert f"each of the {number} fields" in adr.read_text()


def test_what_goes_into_the_manifest_is_listed_there() -> None:
    parts = {OWNERS[part]: fields for part, fields in settings._PARTS.items()}
    for owner, fields in (parts | {"MultiModalConfig": settings._MULTIMODAL, "LoRAConfig": settings._LORA}).items():
        assert set(fields) - {"runner_type"} <= set(vllm_fields.MANIFEST[owner].split()), owner


@pytest.mark.parametrize("owner", sorted(vllm_fields.OTHER))
def test_every_setting_of_this_version_of_vllm_is_known(owner: str) -> None:
    config = pytest.importorskip("vllm.config")
    listed = {field for group in GROUPS for field in group.get(owner, "").split()}
    unknown = {f.name for f in dataclasses.fields(getattr(config, owner))} - listed
    assert unknown == set(), "decide for each whether it changes KV: see vllm_fields.py"
