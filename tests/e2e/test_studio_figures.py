"""The Figures page in a real browser: pictures side by side, their verdicts, their data."""

from __future__ import annotations

import pytest
from studio_browser import Server, open_page

pytestmark = pytest.mark.e2e


def test_before_any_figure_the_page_says_what_to_do(page, bare_server: Server) -> None:
    open_page(page, bare_server, "/figures")
    page.get_by_text("No figures yet").wait_for()
    assert f"nbafl reproduce --out {bare_server.runs / 'reproduce'}" in page.locator("body").inner_text()


@pytest.mark.usefixtures("figures")
def test_figures_stand_side_by_side_with_their_verdicts(page, server: Server) -> None:
    open_page(page, server, "/figures")
    pictures = page.locator("#figure-4 img")
    pictures.first.wait_for()
    page.wait_for_function(
        "() => [...document.querySelectorAll('#figure-4 img')].every(i => i.naturalWidth > 100)"
    )
    assert [p.get_attribute("alt") for p in pictures.all()] == [
        "Figure 4 under The paper’s rule, as printed",
        "Figure 4 under Exact noise against the eavesdropper",
    ]
    text = page.locator("#figure-4").inner_text()
    assert "holds" in text
    assert "more clients, less loss" in text
    assert "is worth ε = 171.6 at δ = 0.01 against eavesdropper (2C/m granted)" in text
    with page.expect_download() as download:
        page.locator("#figure-4 a", has_text="data").first.click()
    assert download.value.suggested_filename == "fig04_paper.csv"
