"""CVE-2025-27817: the URL of tokens' keys read any file, and sent requests to any host, for any client that could set it."""

from __future__ import annotations

import pytest

from ottla.core.settings import InvalidSettings, SettingText, load, settings_of
from ottla.security.config import ALLOWED_URLS, SaslConfig
from ottla.security.sasl.oauthbearer import TokenValidator

EXPECTED = {"sasl.oauthbearer.expected.audience": "a", "sasl.oauthbearer.expected.issuer": "i"}
URL = "sasl.oauthbearer.jwks.endpoint.url"


def validator(**given: str) -> TokenValidator:
    return TokenValidator(load(SaslConfig, {key: SettingText(text, "") for key, text in {**EXPECTED, **given}.items()}))


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "ftp://x/y",
        "gopher://x",
        "jar:file:///x!/y",
        "/etc/passwd",
        "https://",
    ],
)
def test_other_schemes_than_https_and_file_are_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="https://"):
        validator(**{URL: url})


def test_a_url_that_is_not_allowed_is_refused() -> None:
    allowed = {ALLOWED_URLS: "https://issuer.example/keys"}
    validator(**{URL: "https://issuer.example/keys", **allowed})
    for url in ("https://issuer.example/other", "file:///etc/passwd", "https://issuer.example/keys/../x"):
        with pytest.raises(InvalidSettings, match="not among those"):
            validator(**{URL: url, **allowed})


def test_no_setting_of_a_sign_in_changes_while_the_broker_runs() -> None:
    """Such a setting comes from this broker's own file: AlterConfigs refuses it (test_cve_2023_25194.py)."""
    assert not [spec.key for spec in settings_of(SaslConfig).values() if spec.live]
