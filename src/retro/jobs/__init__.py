"""The work done in a workspace, one function a stage: build, search, train, fit, score, inspect.

The stages themselves take paths and know no workspace. Here each gets its place, its
inputs and its checks.
"""
