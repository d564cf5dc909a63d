"""Secrets at rest: what Kafka's own encoder wrote is read, new values have AES-GCM, and nothing of them is shown."""

from __future__ import annotations

import hashlib

import pytest

from ottla.core.settings import InvalidSettings, SettingText, load
from ottla.security.config import ITERATIONS_MIN, SecretConfig
from ottla.security.password_encoder import PasswordEncoder, PasswordNotDecoded, is_encoded

SALT_CBC = (
    "ZKFD2orvBAG8CdEFfghclFeuNrQGN0bQlmwDKMNL1lbPEi5Z5ozGkHQhJH8I7aogAHBaB3PfUSPxuG6It9nl1A6XfMY5cR3YexPomfbZF/PbcuFRTv6O"
    "gdTDj7JFuc0ruSNj3tQDO7AugEmyP2cvjm5mA2op/Nl9dVV0huUCoukOQmoCsrS1OzPP5S0GfBWVrbSh1ymnR63ec/28mxT2qfICM2IqECTmL9kk0oiI"
    "bLJuJ9RfL1DW+xRO7M5/AGp+2JddkISN7ctrLJY0FcHvwmSxAvSnHqpXaPVeAcxpTj8GAKSTGMCKe6Szyr3Tyw1+84JA6ENi47TK7Phvr1qpxQ=="
)
SALT_GCM = (
    "BxZ0A++Fvxl6FNF7/e0lsLUuLyFn5vgigd9u6mrQ+J+jKFdJvtWrD2MVumBdEkW90pRuNxOOAluZvQe7ETXkRzNur6EZg7ld4LR0QaQyW+tPOYIZK6El"
    "OsyE1KLPeRvbPRRqmhGN0a6h9NFOe6P+B6ZOfsNvlc+7OzuNtSZ7B93MoprCeO1aALuRifWbnS/Ur9KoEULeXUL6ONsgcqEkBjdcN92cAL/TkPZn5Z/U"
    "MrrpV0wndVLq63mxE+UbX04mrhbLCkPFi2HVVn++dUvhGs0wi5c8+b3F3rXXgQom+27KtO9xgv98myYKyc+E1K5YGmMeNR5e9quufJVkcVb6Wg=="
)
OF_KAFKA = (  # as PasswordEncoder of Kafka 3.9.1 wrote them, with its defaults
    (
        f"initializationVector:eYxTNM+HQurwYbPQweMgyg==,keyLength:128,salt:{SALT_CBC},keyFactoryAlgorithm:PBKDF2WithHmacSHA512,"
        "cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:15,"
        "encryptedPassword:qv3VyTr7TRIaWgLoLiuvTp2Wj3PsPtZC+iHb1dSn3+Q="
    ),
    (
        f"initializationVector:Zh3hFXT+Lqy3fl4i,keyLength:128,salt:{SALT_GCM},keyFactoryAlgorithm:PBKDF2WithHmacSHA512,"
        "cipherAlgorithm:AES/GCM/NoPadding,authenticationTagLength:128,iterations:4096,passwordLength:15,"
        "encryptedPassword:IHd745ytKHO3QGK7ZZlA+46jakgwms6s4Iii7E6ehhHo/A=="
    ),
)
SECRET_OF_KAFKA = "kafka-secret-é"


@pytest.mark.parametrize("text", OF_KAFKA)
def test_what_kafka_encrypted_is_read(text: str) -> None:
    assert is_encoded(text)
    assert PasswordEncoder(SECRET_OF_KAFKA).decode(text) == "clé 🔑 password"
    with pytest.raises(PasswordNotDecoded):
        PasswordEncoder("another").decode(text)


def test_a_secret_is_encrypted_with_a_random_vector_and_many_iterations() -> None:
    encoder = PasswordEncoder("s", iterations=ITERATIONS_MIN)
    first, second = encoder.encode("geheim ü 🔑"), encoder.encode("geheim ü 🔑")
    assert first != second and "geheim" not in first
    assert "cipherAlgorithm:AES/GCM/NoPadding" in first and f"iterations:{ITERATIONS_MIN}" in first
    assert PasswordEncoder("s").decode(first) == encoder.decode(second) == "geheim ü 🔑"


def test_a_changed_value_is_refused_and_the_error_has_nothing_of_it() -> None:
    encoder = PasswordEncoder("the-secret", iterations=ITERATIONS_MIN)
    text = encoder.encode("canary-password")
    at = text.index("encryptedPassword:") + len("encryptedPassword:")
    changed = [
        text[:at] + ("B" if text[at] == "A" else "A") + text[at + 1 :],
        text.replace("passwordLength:15", "passwordLength:15,iterations:2147483647"),
        text.replace("AES/GCM/NoPadding", "AES/ECB/PKCS5Padding"),
        text.replace("keyLength:256", "keyLength:8"),
        text.replace("PBKDF2WithHmacSHA512", "PBEWithMD5AndDES"),
        text[: at + 3],
        "canary-password",
        "",
    ]
    for each in changed:
        with pytest.raises(PasswordNotDecoded) as refused:
            encoder.decode(each)
        assert "canary" not in f"{refused.value!r}" and refused.value.__cause__ is None
    assert "the-secret" not in repr(encoder)


def test_an_absurd_number_of_iterations_is_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def derive(*_arguments: object) -> bytes:
        raise AssertionError("no key is derived")

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", derive)
    with pytest.raises(PasswordNotDecoded):
        PasswordEncoder(SECRET_OF_KAFKA).decode(OF_KAFKA[0].replace("iterations:4096", "iterations:2147483647"))


def test_fewer_iterations_than_are_safe_are_no_setting() -> None:
    with pytest.raises(InvalidSettings, match="iterations"):
        load(SecretConfig, {"password.encoder.iterations": SettingText("4096", "test")})
