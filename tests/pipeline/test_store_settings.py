"""Credentials of object stores: found by the names that people use, and shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipeline.lake.store_settings import NoCredentials, StoreSettings

CREDENTIALS = """[default]
aws_access_key_id = DEFAULTKEY
aws_secret_access_key = default-secret
[work]
aws_access_key_id = WORKKEY
aws_secret_access_key = work-secret
aws_session_token = work-token
"""
CONFIG = """[profile work]
region = eu-west-1
[profile role]
role_arn = arn:aws:iam::1:role/x
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return tmp_path


def test_a_profile_that_is_asked_for_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-environment")
    options = StoreSettings(profile="work").options()
    assert options["aws_access_key_id"] == "WORKKEY"
    assert (options["aws_session_token"], options["aws_region"]) == ("work-token", "eu-west-1")
    assert "aws_access_key_id" not in StoreSettings().options(), "the libraries read the environment themselves"


def test_without_credentials_in_the_environment_a_profile_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert StoreSettings().options()["aws_access_key_id"] == "DEFAULTKEY"
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert StoreSettings(region="us-east-2").options()["aws_region"] == "us-east-2"
    assert StoreSettings().options()["aws_access_key_id"] == "WORKKEY"


def test_a_web_identity_and_a_machine_without_files_are_left_to_the_libraries(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")
    assert StoreSettings().options() == {"aws_conditional_put": "etag"}
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    (home / ".aws" / "credentials").unlink()
    assert StoreSettings().options() == {"aws_conditional_put": "etag"}


@pytest.mark.parametrize(("profile", "reason"), [("none", "there is no profile none"), ("role", "role has role_arn")])
def test_a_profile_without_keys_is_refused(profile: str, reason: str) -> None:
    with pytest.raises(NoCredentials, match=reason):
        StoreSettings(profile=profile).options()


def test_plain_http_is_for_an_endpoint_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert StoreSettings().options()["allow_http"] == "true"
    assert "allow_http" not in StoreSettings("https://host").options()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://of-s3")
    assert StoreSettings().options()["aws_endpoint"] == "https://of-s3"


def test_an_error_is_brief_and_names_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    settings = StoreSettings(profile="work", vended=(("aws_session_token", "vended-token"),))
    for secret in ("of-the-environment", "work-secret", "work-token", "vended-token"):
        assert secret not in settings.brief(f"it failed with {secret} in it")
    body = "<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message><StringToSign>x-amz-security-token:abc"
    assert settings.brief(body) == "SignatureDoesNotMatch: no"
    assert settings.brief("sent X-Amz-Security-Token: abcdef, and so on") == "sent X-Amz-Security-Token: ***, and so on"
    assert "vended-token" not in repr(settings)
