"""Resolves how an object store is reached: endpoint, region and credentials, by the names that people use.

Credentials come from the environment (`AWS_ACCESS_KEY_ID` and so on), from a profile of AWS's files, from a role of the
machine or a web identity. The last two and the environment are read by the libraries themselves, in the process that
needs them; what is resolved here is what they do not read. A job file has no secrets.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_OF_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_OTHER_WAYS = ("role_arn", "sso_session", "sso_start_url", "credential_process", "web_identity_token_file")
_LEAST_SECRET_CHARS = 4
_BRIEF_CHARS = 300
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_SIGNED = re.compile(r"(?i)(x-amz-security-token|authorization|signature|credential)([=:]\s*)[^\s&,<\"]+")


class NoCredentials(OSError):
    """A profile does not contain the credentials that are wanted of it."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of an object store: a value that is sent to tasks, which find credentials themselves."""

    endpoint: str | None = None
    """The URL of the server; None: that of the environment, or the cloud's own."""
    region: str | None = None
    profile: str | None = None
    """A profile of AWS's files; None: the environment's, if that has no credentials itself."""
    vended: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options with credentials that a catalog gave for one table."""

    def options(self) -> dict[str, str]:
        """Return the options of `object_store`. They may contain credentials. Raises NoCredentials."""
        given = {"aws_region": self.region, "aws_endpoint": self._endpoint()}
        options = {name: value for name, value in given.items() if value}
        if self.vended:
            return self._complete(options | dict(self.vended))
        return self._complete(options | _profile_options(self.profile, os.environ, has_region="aws_region" in options))

    def brief(self, text: str) -> str:
        """Return an error's text without credentials and without the request."""
        codes, messages = _CODE.findall(text), _MESSAGE.findall(text)
        if codes:
            text = ": ".join([codes[0], *messages[:1]])
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return _SIGNED.sub(r"\1\2***", text.split("\n\n", 1)[0])[:_BRIEF_CHARS]

    def _endpoint(self) -> str | None:
        return self.endpoint or next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)

    @staticmethod
    def _complete(options: dict[str, str]) -> dict[str, str]:
        if options.get("aws_endpoint", "").startswith("http://"):
            options["allow_http"] = "true"
        return options | {"aws_conditional_put": "etag"}

    def _secrets(self) -> list[str]:
        secrets = [value for _, value in self.vended]
        secrets += [os.environ.get(name.upper(), "") for name in _KEYS]
        try:
            secrets += _profile_options(self.profile, os.environ, has_region=True).values()
        except OSError:
            pass
        return [value for value in secrets if len(value) >= _LEAST_SECRET_CHARS and not value.startswith("http")]


def _profile_options(profile: str | None, environment: Mapping[str, str], *, has_region: bool) -> dict[str, str]:
    """Return the keys of a profile; nothing if the environment has credentials and no profile was asked for."""
    if profile is None and any(environment.get(name) for name in _OF_ENVIRONMENT):
        return {}
    name = profile or environment.get("AWS_PROFILE")
    values = _profile(name or "default", environment)
    if not values:
        if name:
            raise NoCredentials(f"there is no profile {name} in AWS's files")
        return {}
    options = {key: values[key] for key in _KEYS if values.get(key)}
    if name and _KEYS[0] not in options:
        other = next((way for way in _OTHER_WAYS if values.get(way)), "no keys")
        raise NoCredentials(
            f"profile {name} has {other}, which is not read here: export its keys to the environment "
            "(aws configure export-credentials)"
        )
    if not has_region and values.get("region"):
        options["aws_region"] = values["region"]
    return options


def _profile(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    home = Path(environment.get("HOME") or Path.home()) / ".aws"
    settings: dict[str, str] = {}
    for variable, file, sections in (
        ("AWS_CONFIG_FILE", "config", (f"profile {name}", name)),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", (name,)),
    ):
        parser = configparser.RawConfigParser()
        parser.read(environment.get(variable) or home / file, encoding="utf-8")
        for section in sections:
            if parser.has_section(section):
                settings |= dict(parser.items(section))
    return settings
