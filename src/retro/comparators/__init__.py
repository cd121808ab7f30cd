"""Other ways to give a model a memory, each scored beside RETRO on the same documents."""
