"""Who gets in: the token, foreign names for this machine, ports that are taken, addresses that do not exist."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from studio_browser import PATIENCE, Server, end, nbafl, serve

pytestmark = pytest.mark.e2e

TOKEN = "end-to-end-secret"
ADDRESSES = ("/", "/runs", "/figures", "/studio-static/studio.css", "/_nicegui_ws/socket.io/?EIO=4")


@pytest.fixture
def unwatched(browser):
    """A page that may be refused something."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    yield page
    page.close()


def test_with_a_token_nothing_is_served_without_it(unwatched, tmp_path: Path) -> None:
    server = serve(tmp_path, "--token", TOKEN)
    try:
        for address in ADDRESSES:
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(server.url + address, timeout=60)
            assert refusal.value.code == 401
        unwatched.goto(server.url)
        unwatched.get_by_label("Token").fill(TOKEN)
        unwatched.get_by_role("button", name="Open").click()
        unwatched.locator('[data-epsilon="plan:eavesdropper"]').wait_for()
        assert TOKEN not in unwatched.url
    finally:
        end(server)


def test_a_foreign_name_for_this_machine_is_refused(server: Server) -> None:
    request = urllib.request.Request(server.url, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=60)
    assert refusal.value.code == 403


def test_a_port_that_is_taken_is_said_in_a_sentence(server: Server) -> None:
    port = urlsplit(server.url).port
    refused = subprocess.run(nbafl("studio", "--port", port), capture_output=True, text=True)
    assert refused.returncode == 1
    assert f"port {port}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_address_that_is_none_is_said_in_a_sentence(unwatched, server: Server) -> None:
    unwatched.goto(server.url + "/nowhere")
    unwatched.get_by_text("There is no such page").wait_for()
