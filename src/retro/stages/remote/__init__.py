"""A workspace at an address that fsspec knows, mirrored in a folder of this machine.

Read `mirror` first. `arrival` brings a state into a folder, `state` says what stands at an address, `address`
does what is asked of it, `lock` keeps other writers out, and `tree` knows what a folder here holds.
"""
