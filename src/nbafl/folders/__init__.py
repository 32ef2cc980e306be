"""The folders nbafl leaves on disk, one file per format: runs, audits, reproductions and federation homes.

Whoever writes or reads such a folder, the studio included, does it through here. Nothing here needs torch.
"""
