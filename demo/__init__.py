"""Components of `quire demo`, which publishes messages, kills the server, restarts it, archives, and reads with Spark.

`proof` contains the counts that must be equal. `server` runs the `quire standalone` that is killed, `clients` runs
stock Pulsar clients in threads, and `spark` runs the Spark session. `cli/demo.py` runs the steps and prints their
results.
"""
