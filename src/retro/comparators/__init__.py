"""Other ways to give a model a memory, each beside RETRO on the same documents."""
