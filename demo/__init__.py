"""The parts of `quire demo`, which publishes, kills, recovers, archives and reads back with Spark.

`proof` (what must agree), `server` (a `quire standalone` that is killed), `clients` (stock clients on threads),
`spark`. `cli/demo.py` tells the story.
"""
