"""What clients of a real cluster saw, judged by rules: the ones of Jepsen's workload for Kafka, in Pulsar's words.

    operations   one line per thing that a client did: who, what, how it ended, where, which value, when
    version      from all of them: what lies where in each log
    checker      the anomalies, each with the operations that show it

A key of that workload is a topic here (or one partition of it), an offset is a *position* (ledger, entry, index in the
batch), a client that assigns itself partitions anew is one that *attaches*. Values are unique per topic. Reads of whole
transactions (pre-committed reads, write cycles) do not apply: there are no transactions.
"""
