"""Parties that do what they should not, for tests: extend them when a new way comes to mind.

client    a registered client that posts anything, as often as it likes
stranger  somebody without a key who reaches the port
server    one with the federation's certificate that answers as it pleases
data      of a client that holds less than it said
clock     a machine whose clock jumps
proxy     an HTTPS proxy on the way (not hostile, only in between)
"""
