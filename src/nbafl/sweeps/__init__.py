"""Many runs as one question: accuracy over epsilon, for several settings and seeds.

`grid` says which runs a sweep consists of, `folder` keeps them, `train` makes one of them in a worker, `local` and
`on_ray` hand them to workers, `table` reads the results, `price` says what all of them would have cost together, and
`page` draws them. `nbafl.sweep(...)` is `whole.sweep`.
"""
