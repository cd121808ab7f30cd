"""What every stage is built on: a folder that is finished or goes on, where its work runs, and how far it is."""
