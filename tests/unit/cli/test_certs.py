"""`ottla certs`: certificates that TLS accepts, files that are not overwritten, and what is shown of others."""

from __future__ import annotations

import json
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from ottla.cli.errors import ExitCode
from ottla.cli.main import run
from ottla.client.properties import client_options
from ottla.security.dev_certificates import ADMIN, CLIENT, DevCertificates

FILES = {"ca.pem", "ca-key.pem", "broker.pem", "client.pem", "admin.pem"}


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = ["certs", "dev", str(tmp_path / "certs"), "--host", "broker.test", "--format", "json"]
    assert run(arguments) == ExitCode.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(["certs", "show", *arguments, "--format", "json"]) == ExitCode.OK
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Return the server's side of a connection after a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [one, other]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return other


def server_context(settings: dict[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings["ssl.keystore.location"])
    context.load_verify_locations(settings["ssl.truststore.location"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_the_keys_are_for_their_owner_only(made: dict[str, Any]) -> None:
    files = [Path(name) for name in made["files"]]
    assert {path.name for path in files} == FILES
    assert {path.name for path in files[0].parent.iterdir()} == FILES
    for path in files:
        has_key = b"PRIVATE KEY" in path.read_bytes()
        assert has_key == (path.name != "ca.pem")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if has_key else 0o644)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "broker.test"])
def test_a_client_with_the_printed_settings_signs_in_by_its_certificate(made: dict[str, Any], host: str) -> None:
    tls = client_options(made["client"]).security.tls
    assert tls is not None
    peer = handshake(tls.context(), server_context(made["broker"]), host).getpeercert()
    assert peer is not None
    assert peer["subject"] == ((("commonName", "client"),),)


def test_another_host_and_a_foreign_authority_are_refused(made: dict[str, Any], tmp_path: Path) -> None:
    tls = client_options(made["client"]).security.tls
    assert tls is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.context(), server_context(made["broker"]), "other.test")
    assert run(["certs", "dev", str(tmp_path / "others")]) == ExitCode.OK
    foreign = client_options(DevCertificates(tmp_path / "others").client_settings()).security.tls
    assert foreign is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(foreign.context(), server_context(made["broker"]), "localhost")


def test_a_certificate_of_a_client_is_none_of_a_broker(made: dict[str, Any]) -> None:
    tls = client_options(made["client"]).security.tls
    assert tls is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.context(), server_context(made["client"]), "localhost")


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "admin.pem").write_text("mine")
    assert run(["certs", "dev", str(tmp_path)]) == ExitCode.USAGE
    assert "admin.pem exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["admin.pem"]


def test_a_host_that_no_certificate_can_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    assert run(["certs", "dev", str(tmp_path / "certs"), "--host", "é"]) == ExitCode.USAGE
    assert not (tmp_path / "certs").exists()


def test_the_settings_are_printed_for_files_of_properties(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certs", "dev", str(tmp_path / "certs"), "--days", "2"]) == ExitCode.OK
    lines = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith("#")]
    files = DevCertificates(tmp_path / "certs")
    expected = {**files.broker_settings(), **files.client_settings()}
    assert {name: value for name, _, value in (line.partition("=") for line in lines)} == expected
    assert files.client_settings(ADMIN)["ssl.keystore.location"].endswith("admin.pem")


def test_certificates_are_shown_with_names_and_expiry(
    made: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "certs")
    broker, authority = shown(capsys, "broker.pem")
    assert (broker["subject"], broker["issuer"]) == ("CN=broker", "CN=Ottla test CA")
    assert broker["names"] == ["localhost", "127.0.0.1", "::1", "broker.test"]
    assert 363 <= broker["days_left"] <= 365
    assert (broker["is_authority"], authority["is_authority"]) == (False, True)
    assert (broker["principal"], authority["principal"]) == ("User:CN=broker", "")
    assert run(["certs", "show", "broker.pem"]) == ExitCode.OK
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_the_principal_is_what_the_mapping_rules_give(made: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    admin = next(name for name in made["files"] if name.endswith("admin.pem"))
    rules = made["broker"]["ssl.principal.mapping.rules"]
    assert shown(capsys, admin, "--mapping-rules", rules)[0]["principal"] == "User:admin"
    assert "no rule matches" in shown(capsys, admin, "--mapping-rules", "RULE:^O=(.*)$/$1/")[0]["principal"]
    assert run(["certs", "show", admin, "--mapping-rules", "RULE"]) == ExitCode.USAGE


def test_der_and_pkcs12_are_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    issued = trustme.CA().issue_cert("example.org", organization_name="Ottla", organization_unit_name="Tests")
    certificate = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    der, store, password = tmp_path / "a.der", tmp_path / "a.p12", tmp_path / "password"
    der.write_bytes(certificate.public_bytes(serialization.Encoding.DER))
    encryption = serialization.BestAvailableEncryption(b"secret")
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"a", None, certificate, None, encryption))
    password.write_text("secret\n")
    (row,) = shown(capsys, str(der))
    assert row["subject"] == "OU=Tests,O=Ottla"
    assert shown(capsys, str(store), "--password-file", str(password))[0]["sha256"] == row["sha256"]
    assert run(["certs", "show", str(store)]) == ExitCode.BAD_INPUT
    assert run(["certs", "show", str(tmp_path / "none")]) == ExitCode.NOT_FOUND
    password.write_text("not a certificate")
    assert run(["certs", "show", str(password)]) == ExitCode.BAD_INPUT


def test_an_expired_certificate_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ottla.security.dev_certificates import make_certificates

    files = make_certificates(tmp_path / "old", hosts=["localhost"], days=1, now_ms=1_600_000_000_000)
    assert run(["certs", "show", str(files.identity(CLIENT))]) == ExitCode.OK
    assert "2020-09-14T12:26:40+00:00 (expired)" in capsys.readouterr().out
