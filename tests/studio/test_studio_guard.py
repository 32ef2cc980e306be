"""Nobody talks to the studio from another place, or without the token once there is one."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from nbafl.errors import UsageError
from nbafl.studio.guard import Guard, check_exposure, is_loopback

TOKEN = "a-long-enough-token"


async def _page(_request: object) -> PlainTextResponse:
    return PlainTextResponse("inside")


async def _live(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("inside")
    await socket.close()


def _client(token: str | None = None, host: str = "127.0.0.1:8080", **headers: str) -> TestClient:
    routes = [
        Route("/", _page, methods=["GET", "POST"]),
        Route("/deep/page", _page),
        WebSocketRoute("/live", _live),
    ]
    guarded = Guard(Starlette(routes=routes), token=token)
    return TestClient(guarded, base_url=f"http://{host}", headers=headers, follow_redirects=False)


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:9000", "[::1]:8080"])
def test_this_machine_is_let_in(host: str) -> None:
    assert _client().get("/", headers={"host": host}).text == "inside"


@pytest.mark.parametrize("host", ["evil.example:8080", "127.0.0.1.evil.example", "192.168.1.5:8080", ""])
def test_a_request_under_another_name_is_turned_away(host: str) -> None:
    answer = _client().get("/", headers={"host": host})
    assert answer.status_code == 403
    assert "does not belong" in answer.text


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:9999", "null"])
def test_another_site_cannot_use_the_users_browser(origin: str) -> None:
    client = _client(origin=origin)
    assert client.post("/").status_code == 403
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/live"):
        pass


def test_the_studios_own_page_may_connect() -> None:
    with _client(origin="http://127.0.0.1:8080").websocket_connect(
        "/live", headers={"host": "127.0.0.1:8080"}
    ) as live:
        assert live.receive_text() == "inside"


@pytest.mark.parametrize("path", ["/", "/deep/page", "/no/such/page"])
def test_without_the_token_every_address_asks_for_it(path: str) -> None:
    answer = _client(TOKEN, host="studio.lan").get(path)
    assert answer.status_code == 401
    assert "token" in answer.text
    assert "inside" not in answer.text


def test_the_live_connection_needs_the_token_too() -> None:
    with pytest.raises(WebSocketDisconnect), _client(TOKEN).websocket_connect("/live"):
        pass
    allowed = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1:8080"}
    with _client(TOKEN).websocket_connect("/live", headers=allowed) as live:
        assert live.receive_text() == "inside"


def test_the_token_in_a_link_becomes_a_cookie_and_leaves_the_address() -> None:
    client = _client(TOKEN)
    answer = client.get("/deep/page", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/deep/page")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert client.get("/deep/page").text == "inside"


def test_the_form_takes_the_token_and_refuses_a_wrong_one() -> None:
    client = _client(TOKEN)
    wrong = client.post("/", data={"token": "guess"})
    assert (wrong.status_code, "not the token" in wrong.text) == (401, True)
    assert client.post("/", data={"token": TOKEN}).status_code == 303
    assert client.get("/").text == "inside"


def test_the_redirect_cannot_lead_elsewhere() -> None:
    answer = _client(TOKEN).get("//evil.example/x", params={"token": TOKEN})
    assert answer.headers["location"].startswith("/")
    assert not answer.headers["location"].startswith("//")


def test_a_long_form_is_not_read_to_the_end() -> None:
    assert _client(TOKEN).post("/", content=b"x" * 5_000_000).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "studio.lan", "::"])
def test_other_hosts_need_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(UsageError, match="token"):
        check_exposure(host, None)
    check_exposure(host, TOKEN)


@pytest.mark.parametrize("token", ["", "short", "with\nnewline-in-it", "ümläute-sind-hübsch"])
def test_a_token_that_can_be_guessed_or_garbled_is_refused(token: str) -> None:
    with pytest.raises(UsageError, match="token"):
        check_exposure("127.0.0.1", token)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.0.1"])
def test_loopback_needs_none(host: str) -> None:
    check_exposure(host, None)
