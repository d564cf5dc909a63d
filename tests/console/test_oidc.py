"""Sign-in at a real OpenID Connect provider with TLS on this machine, and what each wrong token or answer meets."""

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from ottla.console.oidc import OidcProvider, SignInFailed
from ottla.security.sasl.jwks import TokenKey
from ottla.testing import Kafka, kafka
from tests.support import chromium
from tests.support.certificates import Certificates
from tests.support.console import BASE, Browser, browsing, options_for, served
from tests.support.oidc_provider import Provider, oidc_provider
from tests.support.processes import free_port

PERSON = "alice@example.org"
OTHER_KEY = rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    with kafka(topics={"orders": 1}) as k:
        yield k


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("oidc"))


@pytest.fixture
def provider(certificates: Certificates) -> Iterator[Provider]:
    with oidc_provider(certificates) as running:
        yield running


def client_of(provider: Provider, console: str = BASE, **changed: Any) -> OidcProvider:
    """The console as a client of the provider, which knows it."""
    provider.redirect_uri = f"{console}/sign-in/callback"
    given = {
        "issuer": provider.issuer,
        "client_id": provider.client_id,
        "client_secret": provider.client_secret,
        "redirect_uri": provider.redirect_uri,
        "trust": ssl.create_default_context(cafile=str(provider.certificates.trusted)),
    }
    return OidcProvider(**{**given, **changed})


@pytest.fixture
async def person(provider: Provider) -> AsyncIterator[httpx.AsyncClient]:
    """The browser of a person at the provider."""
    trust = ssl.create_default_context(cafile=str(provider.certificates.trusted))
    async with httpx.AsyncClient(verify=trust) as client:
        yield client


async def callback_of(browser: Browser, person: httpx.AsyncClient) -> str:
    """Begin at the console, sign in at the provider, and return the path and query that the browser comes back to."""
    begun = await browser.client.get("/sign-in/oidc")
    assert begun.status_code == 303, begun.text
    answered = await person.post(begun.headers["location"], data={"name": PERSON})
    assert answered.status_code == 303, answered.text
    assert answered.headers["location"].startswith(f"{BASE}/sign-in/callback?")
    return str(answered.headers["location"]).removeprefix(BASE)


async def test_a_person_signs_in_and_out(brokers: Kafka, provider: Provider, person: httpx.AsyncClient) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider))) as browser:
        assert (await browser.client.get("/topics")).headers["location"] == "/sign-in"
        path = await callback_of(browser, person)
        before = browser.client.cookies["ottla_console"]
        assert (await browser.client.get(path)).headers["location"] == "/"
        signed_in = browser.client.cookies["ottla_console"]
        assert signed_in != before
        page = await browser.get("/topics")
        assert PERSON in page
        assert "orders" in page
        token = await browser.csrf()
        await browser.client.post("/sign-out", data={"csrf": token})
        browser.client.cookies.set("ottla_console", signed_in, domain="127.0.0.1", path="/")
        assert (await browser.client.get("/topics")).headers[
            "location"
        ] == "/sign-in"  # the old cookie is worth nothing
        away = await browser.client.get("/sign-out/provider")
        assert urlsplit(away.headers["location"]).path == "/end"
        back = await person.get(away.headers["location"])
        assert back.headers["location"] == f"{BASE}/sign-in"
        assert not provider.signed_in


async def test_the_browser_is_sent_with_a_challenge_a_state_and_a_nonce_and_no_secret(
    brokers: Kafka, provider: Provider
) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider))) as browser:
        sent = [(await browser.client.get("/sign-in/oidc")).headers["location"] for _ in range(2)]
    first, second = ({name: values[0] for name, values in parse_qs(urlsplit(url).query).items()} for url in sent)
    assert first["code_challenge_method"] == "S256"
    assert all(first[name] != second[name] for name in ("state", "nonce", "code_challenge"))
    assert provider.client_secret not in sent[0]
    assert "verifier" not in sent[0]


WRONG_CLAIMS: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://other.example"},
    "another audience": {"aud": "other"},
    "issued to another client": {"aud": ["console", "other"], "azp": "other"},
    "expired": {"iat": 1, "exp": 2},
    "without an expiry": {"exp": None},
    "the nonce of another sign-in": {"nonce": "other"},
    "without a nonce": {"nonce": None},
    "without an e-mail address": {"email": None},
    "an address that is not verified": {"email_verified": False},
    "a name that is no text": {"email": ["alice@example.org"]},
}


@pytest.mark.parametrize("claims", WRONG_CLAIMS.values(), ids=WRONG_CLAIMS)
async def test_a_token_that_is_wrong_in_one_respect_is_refused(
    brokers: Kafka, provider: Provider, person: httpx.AsyncClient, claims: dict[str, Any]
) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider))) as browser:
        provider.claims = claims
        refused = await browser.client.get(await callback_of(browser, person))
        assert refused.status_code == 401
        assert "The sign-in failed" in refused.text
        assert (await browser.client.get("/topics")).status_code == 303
        provider.claims = {}
        assert (await browser.client.get(await callback_of(browser, person))).status_code == 303
        await browser.get("/topics")


async def test_a_token_with_a_signature_of_another_key_is_refused(
    brokers: Kafka, provider: Provider, person: httpx.AsyncClient
) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider))) as browser:
        provider.forged_with = OTHER_KEY
        refused = await browser.client.get(await callback_of(browser, person))
        assert refused.status_code == 401
        assert "Signature verification failed" in refused.text


@pytest.mark.parametrize(
    "forged",
    [
        lambda claims, _: jwt.encode(claims, "", "none", headers={"kid": "k1"}),
        lambda claims, _: jwt.encode(
            claims, "a secret of more than thirty-two bytes, shared", "HS256", headers={"kid": "k1"}
        ),
        lambda claims, key: jwt.encode(claims, key, "RS256"),
        lambda claims, key: jwt.encode(claims, key, "RS256", headers={"kid": "k2"}),
        lambda claims, key: jwt.encode(claims, key, "PS256", headers={"kid": "k1"}),
        lambda *_: "a.b.c",
        lambda *_: "",
    ],
    ids=["no algorithm", "a shared secret", "no key id", "an unknown key", "another algorithm", "no token", "empty"],
)
def test_a_token_without_an_accepted_signature_is_refused(
    provider: Provider, forged: Callable[[dict[str, Any], Any], str]
) -> None:
    client = client_of(provider)
    key = provider.keys[provider.signs_with]
    claims = {"iss": provider.issuer, "aud": "console", "sub": "1", "iat": 1, "exp": 1 << 40, "nonce": "n"}
    keys = {"k1": TokenKey(key.public_key(), "RS256")}
    right = jwt.encode({**claims, "email": PERSON}, key, "RS256", headers={"kid": "k1"})
    assert client.name_in(right, keys, "n") == PERSON
    with pytest.raises(SignInFailed):
        client.name_in(forged({**claims, "email": PERSON}, key), keys, "n")


async def test_a_key_that_the_provider_has_changed_is_read_again(
    brokers: Kafka, provider: Provider, person: httpx.AsyncClient
) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider))) as browser:
        for _ in range(3):
            assert (await browser.client.get(await callback_of(browser, person))).status_code == 303
            assert PERSON in await browser.get("/topics")
            provider.rotate()


async def test_an_answer_counts_once_and_in_the_browser_that_began(
    brokers: Kafka, provider: Provider, person: httpx.AsyncClient
) -> None:
    options = options_for(brokers.bootstrap, oidc=client_of(provider))
    async with browsing(options) as browser, browsing(options) as other:
        path = await callback_of(browser, person)
        await other.client.get("/sign-in/oidc")
        assert "does not belong" in (await other.client.get(path)).text  # the state is another browser's
        assert (await browser.client.get(path)).status_code == 303
        token = await browser.csrf()
        await browser.client.post("/sign-out", data={"csrf": token})
        assert "does not belong" in (await browser.client.get(path)).text  # a second time
        assert (await browser.client.get("/sign-in/callback")).status_code == 401
        await callback_of(browser, person)
        code = path.partition("&state=")[0]
        assert (await browser.client.get(f"{code}&state=guessed")).status_code == 401


async def test_a_code_is_worth_nothing_without_the_verifier(
    brokers: Kafka, provider: Provider, person: httpx.AsyncClient
) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider))) as browser:
        stolen = await callback_of(browser, person)
        own = await callback_of(browser, person)
        (code,) = parse_qs(urlsplit(stolen).query)["code"]
        (own_code,) = parse_qs(urlsplit(own).query)["code"]
        refused = await browser.client.get(own.replace(own_code, code))
        assert refused.status_code == 401  # the provider compares the verifier with the challenge of that code
        assert "HTTP Error 400" in refused.text


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"issuer": "https://other.example"}, "names another issuer"),
        ({"token_endpoint": "http://localhost/token"}, "no token_endpoint with https"),
        ({"jwks_uri": "file:///etc/passwd"}, "no jwks_uri with https"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "no authorization_endpoint with https"),
    ],
)
async def test_a_provider_that_describes_itself_wrongly_is_not_used(
    brokers: Kafka, provider: Provider, document: dict[str, Any], why: str
) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider))) as browser:
        provider.document = document
        refused = await browser.client.get("/sign-in/oidc")
        assert refused.status_code == 502
        assert why in refused.text


async def test_a_provider_whose_certificate_is_not_trusted_is_not_used(brokers: Kafka, provider: Provider) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider, trust=None))) as browser:
        refused = await browser.client.get("/sign-in/oidc")
        assert refused.status_code == 502
        assert "certificate verify failed" in refused.text
    assert not provider.asked


async def test_a_provider_that_is_away_is_a_page_that_says_so(brokers: Kafka, certificates: Certificates) -> None:
    with oidc_provider(certificates) as provider:
        client = client_of(provider)
    async with browsing(options_for(brokers.bootstrap, oidc=client)) as browser:
        refused = await browser.client.get("/sign-in/oidc")
        assert refused.status_code == 502
        assert "cannot be asked" in refused.text


async def test_only_people_of_the_list_may_sign_in(
    brokers: Kafka, provider: Provider, person: httpx.AsyncClient
) -> None:
    for allowed, status in ((frozenset({"bob@example.org"}), 401), (frozenset({PERSON}), 303)):
        oidc = client_of(provider, allowed=allowed)
        async with browsing(options_for(brokers.bootstrap, oidc=oidc)) as browser:
            assert (await browser.client.get(await callback_of(browser, person))).status_code == status


async def test_a_refusal_of_the_provider_is_shown_as_text(brokers: Kafka, provider: Provider) -> None:
    async with browsing(options_for(brokers.bootstrap, oidc=client_of(provider))) as browser:
        begun = (await browser.client.get("/sign-in/oidc")).headers["location"]
        (state,) = parse_qs(urlsplit(begun).query)["state"]
        query = {"state": state, "error": "access_denied", "error_description": "<script>alert(1)</script>"}
        refused = await browser.client.get("/sign-in/callback", params=query)
        assert refused.status_code == 401
        assert "&lt;script&gt;" in refused.text
        assert "<script>alert" not in refused.text


@pytest.mark.parametrize("issuer", ["http://id.example", "file:///etc", "id.example", ""])
def test_an_issuer_without_https_is_refused(issuer: str) -> None:
    with pytest.raises(ValueError, match="https"):
        OidcProvider(issuer, "console", "", "https://c")


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.skipif(chromium.executable() is None, reason=chromium.NOT_THERE)
def test_a_person_signs_in_and_out_in_chromium(brokers: Kafka, provider: Provider, tmp_path: Path) -> None:
    # the URL of the console is known when it listens, and is part of its options: the provider learns it afterwards
    port = free_port()
    console = f"http://127.0.0.1:{port}"
    options = options_for(brokers.bootstrap, oidc=client_of(provider, console))
    with served(options, port=port) as url, chromium.chromium() as browser:
        context = browser.new_context(ignore_https_errors=True)  # its own store of certificates does not have ours
        page = context.new_page()
        problems = chromium.Problems(page)
        page.goto(f"{url}/topics")
        page.get_by_role("link", name="Sign in at").click()
        page.get_by_label("Name").fill(PERSON)
        page.get_by_role("button", name="Continue").click()
        page.wait_for_url(f"{console}/")
        assert PERSON in page.inner_text("header.top")
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_role("link", name="orders", exact=True).first.wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("link", name="Sign in at").click()
        page.wait_for_url(f"{console}/")  # the provider's own session still lasts
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("link", name="Sign out there too").click()
        page.wait_for_url(f"{console}/sign-in")
        page.get_by_role("link", name="Sign in at").click()
        page.get_by_label("Name").wait_for()
        assert not problems.found
        context.close()
