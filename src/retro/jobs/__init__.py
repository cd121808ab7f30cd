"""What is done in a workspace, one function a stage: build and search,
train and fit, score and inspect.

The stages themselves take paths and know no workspace. Here each is given its
place, its inputs and its checks.
"""
