"""Keeps secret settings of this broker that AlterConfigs sets: encrypted in the metadata store, as text in memory.

A broker encrypts the secrets of its own (as in Kafka a secret is a setting of one broker), and sends them encrypted to
the controller. Keys are derived in a thread; the loop uses what was decrypted before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.config import is_secret
from ottla.core.settings import HIDDEN_TEXT, InvalidSettings, SettingProblem
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.store import MetadataStore, Put, StoreError
from ottla.security.config import SecretConfig

if TYPE_CHECKING:  # imported where a secret is set
    from ottla.security.password_encoder import PasswordEncoder

log = logging.getLogger(__name__)

NOT_CONFIGURED = "Password encoder secret not configured"
"""Kafka's message for a secret that cannot be stored, because there is no `password.encoder.secret`."""

_CACHED_MAX = 1_000


class DynamicSecrets:
    """Encrypts and decrypts the secrets of one broker."""

    def __init__(self, config: SecretConfig) -> None:
        """Make what encrypts and decrypts. Raises InvalidSettings if a secret is set and cannot be used."""
        self._encoder: PasswordEncoder | None = None
        self._old: PasswordEncoder | None = None
        if config.secret:
            from ottla.security.password_encoder import PasswordEncoder, why_unusable

            if why := why_unusable():
                raise InvalidSettings([SettingProblem("password.encoder.secret", HIDDEN_TEXT, why)])
            new = partial(
                PasswordEncoder,
                iterations=config.iterations,
                key_factory=config.key_factory,
                key_bits=int(config.key_bits),
            )
            self._encoder = new(config.secret)
            self._old = new(config.old_secret) if config.old_secret else None
        self._plain: dict[str, str | None] = {}  # by the encrypted text; None: it cannot be decrypted

    @property
    def is_configured(self) -> bool:
        """Return whether secrets can be stored."""
        return self._encoder is not None

    async def encode(self, secrets: Iterable[str]) -> list[str]:
        """Encrypt secrets."""
        encoder = self._encoder
        assert encoder is not None, "the caller asks whether it is configured"
        plain = list(secrets)
        encoded = await asyncio.to_thread(lambda: [encoder.encode(text) for text in plain])
        self._keep(dict(zip(encoded, plain, strict=True)))
        return encoded

    def _keep(self, plain: Mapping[str, str | None]) -> None:
        if len(self._plain) + len(plain) > _CACHED_MAX:
            self._plain.clear()
        self._plain.update(plain)

    def decoded(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Return settings with their secrets decrypted, as far as they are known. Others are left out."""
        secrets = [key for key in values if is_secret(key)]
        if not secrets:
            return values
        plain_values = {key: text for key, text in values.items() if key not in secrets}
        for key in secrets:
            plain = self._plain.get(values[key])
            if plain is not None:
                plain_values[key] = plain
        return plain_values

    def unknown_in(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the secrets that were not decrypted yet."""
        return {key: text for key, text in values.items() if is_secret(key) and text not in self._plain}

    async def learn(self, values: Mapping[str, str]) -> None:
        """Decrypt the secrets among the settings. What cannot be decrypted is logged, once, and is not in use."""
        for key, text in self.unknown_in(values).items():
            plain = await asyncio.to_thread(self._decode, text)
            if plain is None:
                log.error("the secret setting %s cannot be decrypted and is not in use: %s", key, self._why())
            self._keep({text: plain})

    def _why(self) -> str:
        return "it was encrypted with another password.encoder.secret" if self.is_configured else NOT_CONFIGURED

    def _decode(self, text: str) -> str | None:
        from ottla.security.password_encoder import PasswordNotDecoded

        for encoder in (self._encoder, self._old):
            if encoder is not None:
                try:
                    return encoder.decode(text)
                except PasswordNotDecoded:
                    continue
        return None

    async def encode_again(self, store: MetadataStore, view: ClusterView, node_id: int) -> None:
        """Encrypt with the present secret what the old one had encrypted. Another start does what fails."""
        encoder, old = self._encoder, self._old
        stored = view.broker_configs.get(str(node_id))
        if encoder is None or old is None or stored is None:
            return
        from ottla.security.password_encoder import PasswordNotDecoded

        def again() -> dict[str, str]:
            encoded = {}
            for key, text in stored.values.items():
                if is_secret(key):
                    try:
                        encoded[key] = encoder.encode(old.decode(text))
                    except PasswordNotDecoded:
                        continue  # it is encrypted with the present secret already
            return encoded

        if not (changed := await asyncio.to_thread(again)):
            return
        path = znodes.config_path(znodes.BROKERS_KIND, str(node_id))
        try:
            await store.commit([Put(path, znodes.encode_config({**stored.values, **changed}), stored.version)])
        except StoreError as error:
            log.warning("secrets could not be encrypted again with password.encoder.secret: %r", error)
        else:
            log.info("encrypted %d secret settings again with the present password.encoder.secret", len(changed))
