"""CVE-2017-12610: a client signed in as itself, and got another principal by the authorization id."""

from __future__ import annotations

from pathlib import Path

from scramp import ScramClient

from ottla.core.errors import ErrorCode
from tests.support.sasl_broker import PASSWORD, sasl_broker

DIFFERENT = "Authentication failed: Client requested an authorization id that is different from username"


async def test_an_authorization_id_of_another_user_is_refused(tmp_path: Path) -> None:
    async with sasl_broker(tmp_path) as broker:
        await broker.add_user("root")
        async with await broker.client() as client:
            await client.handshake("PLAIN")
            answer = await client.token(b"root\0alice\0plain secret")
            assert answer is not None
            assert (answer["error_code"], answer["error_message"]) == (ErrorCode.SASL_AUTHENTICATION_FAILED, DIFFERENT)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            async with await broker.client() as client:
                await client.handshake(mechanism)
                first = ScramClient([mechanism], "alice", PASSWORD).get_client_first()
                answer = await client.token(first.replace("n,,", "n,a=root,", 1).encode())
                assert answer is not None
                assert (answer["error_code"], answer["error_message"]) == (
                    ErrorCode.SASL_AUTHENTICATION_FAILED,
                    DIFFERENT,
                )
