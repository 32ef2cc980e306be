"""How a round's clients are trained; every engine gives the same result."""
