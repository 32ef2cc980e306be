// The theme's search has no name for a screen reader, and its wide tables and code cannot be reached by keyboard.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
  }
});
