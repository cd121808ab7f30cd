"""A model behind HTTP, with OpenAI's API and the sources of every answer.

Read `schema/` (what is asked and answered), `engine.py` (one thread, one running batch), `asking.py` and
`answering.py` (from a request to an answer), `citations.py` and `explaining.py` (what was read, and what it
was worth), `memory.py` (the datastore while it serves), `security.py`, and `app.py`, which wires them.
"""
