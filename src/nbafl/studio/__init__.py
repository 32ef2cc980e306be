"""The studio: a local web page to plan a federation with sliders, watch runs and compare them.

Pages hold no mathematics: every number comes from `Plan`, `Run`, `theory` or `paper`. Training never happens in the
web process; a run is `nbafl run` as a process of its own, so it outlives the page and the studio.
"""
