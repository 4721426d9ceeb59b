"""Operations requested by clients and operators: on one topic, on all its partitions, or on all brokers.

Read in this order:

    fan_out             one request to each partition of a topic, or to each other broker
    partitioned         growth of partitioned topics, with their subscriptions
    deletion            deletion of partitioned topics, and recovery of interrupted deletions
    client_topics       lookups, subscriptions and schemas, for clients
    topic_admin         requests about a topic
    topic_storage       truncating, trimming and offloading of a topic
    subscription_admin  requests about a subscription
    policy_admin        changes of policies, applied to loaded topics
    dynamic_settings    settings that operators change at run time
    archive_admin       requests about the archive
    matching            a filter of messages, and its scan of blocks
    peeking             reads of entries without acknowledgement
    searching           searches over all messages of a topic, slice by slice
    sender              a producer of one message
    publishing          single messages of operators
    messages            the object with these three
    statistics          Pulsar's `stats` and `internalStats`, plans for Spark
    tables              the two tables of the console
    topic_table         pages of a namespace's topics
    namespace_table     namespaces with sums over their topics; search for topics
    history             rates of the last hours
    topic_metrics       metrics of namespaces, topics and subscriptions
    broker_report       one broker's topics, load and metrics, in Pulsar's forms
    admin               the object with these parts
"""
