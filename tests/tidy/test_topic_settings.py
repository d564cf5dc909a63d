"""Every topic setting does something that a test shows, or says why it does nothing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from ottla.broker.config_resources import HIDDEN
from ottla.storage.config import LogConfig, topic_settings

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {key: found.spec for key, found in topic_settings().items() if key not in HIDDEN}


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROOFS: dict[str, tuple[str, str]] = tool("generate_topic_settings").PROOFS
KAFKA_SETTINGS: frozenset[str] = tool("generate_topic_settings").KAFKA_SETTINGS


def test_every_topic_setting_of_kafka_is_known() -> None:
    assert set(topic_settings()) >= KAFKA_SETTINGS


@pytest.mark.parametrize("key", SETTINGS)
def test_a_topic_setting_is_shown_to_work_or_says_why_it_does_not(key: str) -> None:
    if SETTINGS[key].no_effect:
        assert key not in PROOFS
        return
    path, test = PROOFS[key]
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^ *((async )?def test_{test}\(|{test} = )", text, re.MULTILINE), f"{path} has no test {test}"


def test_no_proof_is_of_a_setting_that_is_not_there() -> None:
    assert set(PROOFS) <= set(SETTINGS)


def test_the_configuration_page_has_defaults_and_other_names() -> None:
    page = tool("generate_docs").markdown("Title", LogConfig)

    assert "| `log.segment.bytes` | 1073741824 | bytes |" in page
    assert "Also set by `log.retention.minutes`, `log.retention.hours`." in page
