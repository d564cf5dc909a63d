"""Contexts of listeners from key stores and trust stores in every format, and what is wrong with those that are refused."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from ottla.security.config import TlsConfig
from ottla.security.key_stores import InvalidKeyStore
from ottla.security.tls import content_digest, load_tls
from tests.support.certificates import PASSWORD, Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def connect(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Run a handshake in memory; returns the client's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    served = server.wrap_bio(to_server, to_client, server_side=True)
    asked = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for side in (asked, served):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert served.version() is not None
    return asked


def stores(certificates: Certificates) -> dict[str, dict[str, str]]:
    issued = certificates.issue()
    encrypted = certificates.directory / "encrypted.pem"
    encrypted.write_text(certificates.key(issued, "key-secret") + certificates.chain(issued))
    key, chain = certificates.key(issued), certificates.chain(issued)
    return {
        "PEM": {"keystore_location": str(certificates.store("broker.pem", issued))},
        "PEM with an encrypted key": {"keystore_location": str(encrypted), "key_password": "key-secret"},
        "PKCS#12": {
            "keystore_location": str(certificates.pkcs12_store("broker.p12", issued)),
            "keystore_password": PASSWORD,
        },
        "PEM text": {"keystore_chain": chain, "keystore_key": key},
        "PEM text on one line": {"keystore_chain": chain.replace("\n", ""), "keystore_key": key.replace("\n", " ")},
        "PEM text with an encrypted key": {
            "keystore_chain": chain.replace("\n", "\\n"),
            "keystore_key": certificates.key(issued, "key-secret"),
            "key_password": "key-secret",
        },
    }


@pytest.mark.parametrize(
    "kind",
    [
        "PEM",
        "PEM with an encrypted key",
        "PKCS#12",
        "PEM text",
        "PEM text on one line",
        "PEM text with an encrypted key",
    ],
)
def test_a_key_store_is_loaded_in_every_format(kind: str, certificates: Certificates) -> None:
    settings: dict[str, Any] = dict(stores(certificates)[kind])
    config = TlsConfig(**settings)

    loaded = load_tls(config)

    client = connect(loaded.terms.context, certificates.client_context())
    assert client.version() == "TLSv1.3"
    assert loaded.certificates[0].subject == "OU=Tests,O=Ottla"


def refused(**settings: Any) -> str:
    with pytest.raises(InvalidKeyStore) as raised:
        load_tls(TlsConfig(**settings))
    return str(raised.value)


def test_a_key_store_that_cannot_be_used_is_refused_with_the_reason(certificates: Certificates, tmp_path: Path) -> None:
    found = stores(certificates)
    jks, nonsense = tmp_path / "store.jks", tmp_path / "nonsense"
    jks.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    nonsense.write_bytes(b"hello")
    pem = found["PEM"]
    assert "TLS needs a certificate: set ssl.keystore.location" in refused()
    assert "keytool -importkeystore" in refused(keystore_location=str(jks))
    assert "neither PEM nor PKCS#12" in refused(keystore_location=str(nonsense))
    assert "cannot be read" in refused(keystore_location=str(tmp_path / "absent"))
    assert "cannot be opened" in refused(**{**found["PKCS#12"], "keystore_password": "wrong"})
    encrypted = found["PEM with an encrypted key"]
    assert "does not contain a certificate with its key" in refused(**{**encrypted, "key_password": "wrong"})
    assert "does not contain a certificate with its key" in refused(**{**encrypted, "key_password": ""})
    assert "need each other" in refused(keystore_chain=found["PEM text"]["keystore_chain"])
    assert "contradicts" in refused(**pem, **found["PEM text"])
    assert "needs ssl.truststore.location" in refused(**pem, client_auth="required")
    assert "contains no trusted certificates" in refused(**pem, truststore_certificates="nonsense -----BEGIN")
    other = certificates.issue()
    mixed = {"keystore_chain": certificates.chain(other), "keystore_key": found["PEM text"]["keystore_key"]}
    assert "does not contain a certificate with its key" in refused(**mixed)


@pytest.mark.parametrize(
    ("suites", "version", "cipher"),
    [
        (("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"), "TLSv1.2", "AES256"),
        (("ECDHE+CHACHA20",), "TLSv1.2", "CHACHA20"),
        (("TLS_AES_256_GCM_SHA384",), "TLSv1.3", ""),
        ((), "TLSv1.3", ""),
    ],
)
def test_cipher_suites_have_the_names_of_kafka_or_of_openssl(
    suites: tuple[str, ...], version: str, cipher: str, certificates: Certificates
) -> None:
    config = TlsConfig(keystore_location=str(certificates.store("broker.pem")), cipher_suites=suites)

    client = connect(load_tls(config).terms.context, certificates.client_context())

    found = client.cipher()
    assert client.version() == version
    assert found is not None and cipher in found[0]


def test_cipher_suites_that_leave_none_are_refused(certificates: Certificates) -> None:
    store = str(certificates.store("broker.pem"))
    assert "OpenSSL supports" in refused(keystore_location=store, cipher_suites=("TLS_NONE_WITH_NONE",))
    assert "has no cipher of TLSv1.3" in refused(
        keystore_location=store,
        cipher_suites=("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",),
        enabled_protocols=("TLSv1.3",),
    )


def test_an_intermediate_authority_is_enough_to_be_trusted_as_in_java(certificates: Certificates) -> None:
    intermediate = certificates.authority.create_child_ca()
    client = intermediate.issue_cert("client@example.org")
    config = TlsConfig(
        keystore_location=str(certificates.store("broker.pem")),
        truststore_certificates=intermediate.cert_pem.bytes().decode(),
        client_auth="required",
    )

    connect(load_tls(config).terms.context, certificates.client_context(client))


def test_the_digest_changes_with_the_content_of_the_files(certificates: Certificates) -> None:
    store = certificates.store("broker.pem")
    config = TlsConfig(keystore_location=str(store), truststore_location=str(certificates.trusted))
    before = content_digest(config)
    assert content_digest(config) == before
    certificates.store("broker.pem")
    assert content_digest(config) != before
