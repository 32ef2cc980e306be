"""Attacks on the mechanism: what an adversary can prove, beside what the plan claims."""
