"""The files of `ottla up --secure`: made once, for their owner only, and what a page shows of them."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from ottla.client.properties import client_options
from ottla.core.clock import SystemClock
from ottla.local_cluster.cluster import CannotRun, ClusterPlan, make_plan
from ottla.local_cluster.secured import SecuredCluster, hidden, secure

PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"


@pytest.fixture
def secured(tmp_path: Path) -> SecuredCluster:
    found = secure(tmp_path, clock=SystemClock())
    found.write_broker_settings(1, "127.0.0.1:9092")
    found.write_client_settings("127.0.0.1:9092")
    return found


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def settings(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in text.splitlines()) if name}


def test_only_the_owner_can_read_what_is_secret(tmp_path: Path, secured: SecuredCluster) -> None:
    for name in contents(tmp_path):
        mode = 0o644 if name.endswith("ca.pem") else 0o600
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode, name
    assert secured.password not in repr(secured)
    assert secured.password in secured.admin_file.read_text()
    assert secured.password not in secured.broker_file(1).read_text()
    assert secured.password not in "\n".join(hidden(secured.client_settings()))


def test_a_directory_keeps_its_certificates_and_its_password(tmp_path: Path, secured: SecuredCluster) -> None:
    before = contents(tmp_path)
    again = secure(tmp_path, clock=SystemClock())
    assert again.password == secured.password
    assert contents(tmp_path) == before


def test_a_start_that_was_interrupted_is_repeated(tmp_path: Path, secured: SecuredCluster) -> None:
    (tmp_path / "users").unlink()
    (tmp_path / "certs" / "broker.pem").unlink()
    authority = (tmp_path / "certs" / "ca.pem").read_bytes()
    assert secure(tmp_path, clock=SystemClock()).password != secured.password
    assert (tmp_path / "certs" / "ca.pem").read_bytes() != authority


def test_the_administrators_settings_are_those_of_a_client(secured: SecuredCluster) -> None:
    written = settings(secured.admin_file.read_text())
    assert written.pop("bootstrap.servers") == "127.0.0.1:9092"
    assert written == secured.client_settings()
    sasl = client_options(written).security.sasl
    assert sasl is not None
    assert (sasl.username, sasl.password) == ("admin", secured.password)


def test_the_page_shows_the_settings_of_these_brokers(secured: SecuredCluster) -> None:
    (block,) = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    shown, written = settings(block), settings(secured.broker_file(1).read_text())
    assert set(shown) - {"advertised.listeners"} == set(written)
    same = {name for name in written if "location" not in name and "file" not in name and name != "listeners"}
    assert {name: shown[name] for name in same} == {name: written[name] for name in same}


def test_a_secured_cluster_stays_secured_and_another_does_not_become_it(tmp_path: Path) -> None:
    assert make_plan(tmp_path, brokers=None, port=None, secured=True) == ClusterPlan(3, 9092, is_secured=True)
    saved = {"version": 1, "brokers": 3, "port": 7000}
    (tmp_path / "cluster.json").write_text(json.dumps({**saved, "secured": True}))
    assert make_plan(tmp_path, brokers=None, port=None).is_secured
    (tmp_path / "cluster.json").write_text(json.dumps(saved))
    assert not make_plan(tmp_path, brokers=None, port=None).is_secured
    with pytest.raises(CannotRun, match="a cluster without security"):
        make_plan(tmp_path, brokers=None, port=None, secured=True)
