"""Topics of one broker: their records, the loaded topics, and periodic maintenance.

Read in this order:

    topic_records     topics' records in the metadata store
    topic_lists       lists of a namespace's topics, kept current for clients that watch them
    catalogue         topics that exist or may be created; limit of topics in a namespace
    bundles           state log and counters that the topics of a bundle share
    topic_ownership   ownership of a bundle, by the name of a topic
    topic_loader      loading of one topic
    registry          all loaded topics
    topic_deletion    deletion of one topic
    splits            split of a bundle in two
    local_bundles     the bundles of this broker: the port that `ownership` uses
    offload_requests  archiving of one topic's segments on request
    offloading        the broker's side of the archive: segments of loaded topics, and archive jobs
    idle_topics       unloading of idle topics, and loading when maintenance requires it
    rounds            maintenance of all loaded topics every few seconds
    orphaned_ledgers  recovery of open ledgers that no broker closes
"""
