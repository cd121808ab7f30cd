"""The paper's tables and figures on data that one has, with its claims as a checklist."""
