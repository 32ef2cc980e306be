"""Secure aggregation: the server learns a sum of noisy uploads and nothing else.

The protocol is Bonawitz et al. (CCS 2017) against an active server, with the key set-up moved ahead of the round and
made for discrete noise that every client adds itself. This room knows no network, no training and no file: `client`
and `server` are state machines over messages (bytes) and an abstract durable store, so that every interleaving, crash
and lie can be tried in a test. docs/howto-secure.md draws the exchanges and docs/threat-model.md says what they give.
"""
