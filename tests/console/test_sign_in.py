"""Who may use the console: passwords of a file, credentials of the brokers, sessions, and other hosts."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ottla.console.passwords import InvalidPasswordFile, PasswordFile, hash_password
from ottla.console.sessions import IDLE_S, LIFETIME_S, SESSIONS_MAX, Sessions
from ottla.testing import Kafka, kafka
from tests.support.console import Browser, browsing, options_for


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    with kafka(topics={"orders": 1}) as k:
        yield k


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> PasswordFile:
    path = tmp_path_factory.mktemp("users") / "users"
    path.write_text(f"# people\nalice:{hash_password('open sesame')}\n")
    return PasswordFile.read(path)


async def sign_in(browser: Browser, user: str, password: str, status: int) -> str:
    page = await browser.get("/sign-in")
    token = page.split('name="csrf" value="')[1].split('"')[0]
    response = await browser.client.post("/sign-in", data={"csrf": token, "user": user, "password": password})
    assert response.status_code == status
    return response.text


async def test_nothing_is_shown_before_the_sign_in(brokers: Kafka, users: PasswordFile) -> None:
    async with browsing(options_for(brokers.bootstrap, users=users)) as browser:
        for path in ("/", "/topics", "/topics/orders/messages", "/groups", "/plots/cluster/records"):
            response = await browser.client.get(path)
            assert response.status_code == 303
            assert response.headers["location"] == "/sign-in"
            assert (await browser.client.get(path, headers={"accept": "application/json"})).status_code == 401
            assert (await browser.client.post(path)).status_code in {403, 405}


async def test_a_user_of_the_file_signs_in_and_out(brokers: Kafka, users: PasswordFile) -> None:
    async with browsing(options_for(brokers.bootstrap, users=users)) as browser:
        for name, password in (("alice", "wrong"), ("bob", "open sesame"), ("alice", "")):
            assert "is wrong" in await sign_in(browser, name, password, 401)
        before = browser.client.cookies["ottla_console"]
        await sign_in(browser, "alice", "open sesame", 303)
        assert browser.client.cookies["ottla_console"] != before  # a session cannot be fixed beforehand
        assert "orders" in await browser.get("/topics")
        token = await browser.csrf()
        await browser.client.post("/sign-out", data={"csrf": token})
        assert (await browser.client.get("/topics")).status_code == 303


async def test_the_cookie_is_for_this_site_and_no_script(brokers: Kafka, users: PasswordFile) -> None:
    for is_https in (False, True):
        async with browsing(options_for(brokers.bootstrap, users=users, is_https=is_https)) as browser:
            cookie = (await browser.client.get("/sign-in")).headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=lax" in cookie
            assert ("secure" in cookie) == is_https


async def test_requests_for_another_host_are_refused(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        for host, status in (("evil.example", 403), ("evil.example:8080", 403), ("localhost:8080", 200)):
            assert (await browser.client.get("/", headers={"host": host})).status_code == status


async def test_large_bodies_are_refused(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        assert (await browser.client.post("/topics", content=b"x" * (3 << 20))).status_code == 413
        assert (await browser.client.post("/topics", content=chunks())).status_code == 413


async def chunks() -> AsyncIterator[bytes]:
    yield b"x"


def test_a_file_of_passwords_with_a_mistake_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    for text in ("alice:secret", "alice", "", "alice:scrypt$!$!"):
        path.write_text(text)
        with pytest.raises(InvalidPasswordFile):
            PasswordFile.read(path)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


async def test_sessions_end_and_their_number_is_bounded() -> None:
    clock = Clock()
    sessions = Sessions(clock=clock)
    session = await sessions.begin()
    clock.now += IDLE_S - 1
    assert await sessions.get(session.token) is session
    clock.now += IDLE_S + 1
    assert await sessions.get(session.token) is None
    session = await sessions.begin()
    for _ in range(int(LIFETIME_S / IDLE_S * 2) + 1):
        clock.now += IDLE_S / 2
        await sessions.get(session.token)
    assert await sessions.get(session.token) is None
    for _ in range(2 * SESSIONS_MAX):
        await sessions.begin()
    assert len(sessions) <= SESSIONS_MAX
