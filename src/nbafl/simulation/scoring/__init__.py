"""How the broadcast model is judged."""
