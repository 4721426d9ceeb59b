import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.ListNamespaceTopicsOptions;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.Mode;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.PulsarAdminException.ConflictException;
import org.apache.pulsar.client.admin.PulsarAdminException.NotAllowedException;
import org.apache.pulsar.client.admin.PulsarAdminException.NotAuthorizedException;
import org.apache.pulsar.client.admin.PulsarAdminException.NotFoundException;
import org.apache.pulsar.client.admin.PulsarAdminException.PreconditionFailedException;
import org.apache.pulsar.client.admin.PulsarAdminException.ServerSideErrorException;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.policies.data.*;

/**
 * What an operator does with the stock admin client, and what it says when it is refused: `Walk URL CLUSTER ADMIN APP`,
 * the last two are tokens. What needs a producer is asked for by a line "please: ..." and done when a line comes back.
 */
public class Walk {
    static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));
    static final String NAMESPACE = "shop/orders";
    static final String TOPIC = "persistent://shop/orders/one";
    static final String PARTS = "persistent://shop/orders/parts";
    static String cluster;
    static PulsarAdmin admin;

    interface Call {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        cluster = arguments[1];
        admin = admin(arguments[0], arguments[2]);
        try {
            part("tenants", Walk::tenants);
            part("namespaces", Walk::namespaces);
            part("permissions", () -> permissions(arguments[0], arguments[3]));
            part("topics", Walk::topics);
            part("stored topics", Walk::storedTopics);
            part("cluster", Walk::cluster);
            part("partitions", Walk::partitions);
            part("subscriptions", Walk::subscriptions);
            part("odd names", Walk::oddNames);
            part("on partitions", Walk::onPartitions);
            part("policies of namespaces", Walk::policiesOfNamespaces);
            part("policies of topics", Walk::policiesOfTopics);
            part("end", Walk::end);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static PulsarAdmin admin(String url, String token) throws Exception {
        var made = PulsarAdmin.builder().serviceHttpUrl(url);
        return (token.isEmpty() ? made : made.authentication(AuthenticationFactory.token(token))).build();
    }

    static void part(String name, Call call) throws Exception {
        call.run();
        System.out.println("done: " + name);
    }

    static void please(String what) throws Exception {
        System.out.println("please: " + what);
        ANSWERS.readLine();
    }

    static void same(Object expected, Object found) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    /** The refusal has its class, its status, and a reason. */
    static void refused(Class<? extends PulsarAdminException> how, int status, Call call) throws Exception {
        try {
            call.run();
        } catch (PulsarAdminException error) {
            same(how, error.getClass());
            same(status, error.getStatusCode());
            if (error.getMessage() == null || error.getMessage().isBlank() || error.getMessage().startsWith("HTTP")) {
                throw new AssertionError("no reason: " + error.getMessage());
            }
            return;
        }
        throw new AssertionError("not refused with " + status);
    }

    static TenantInfo info(String... roles) {
        return TenantInfo.builder().allowedClusters(Set.of(cluster)).adminRoles(Set.of(roles)).build();
    }

    static void tenants() throws Exception {
        var tenants = admin.tenants();
        tenants.createTenant("shop", info("boss"));
        refused(ConflictException.class, 409, () -> tenants.createTenant("shop", info()));
        same(Set.of("boss"), tenants.getTenantInfo("shop").getAdminRoles());
        tenants.updateTenant("shop", info("boss", "other"));
        same(Set.of("boss", "other"), tenants.getTenantInfo("shop").getAdminRoles());
        same(true, tenants.getTenants().contains("shop"));
        refused(NotFoundException.class, 404, () -> tenants.getTenantInfo("none"));
        refused(NotFoundException.class, 404, () -> tenants.updateTenant("none", info()));
        refused(NotFoundException.class, 404, () -> tenants.deleteTenant("none"));
        tenants.createTenant("gone", info());
        tenants.deleteTenant("gone");
    }

    static void namespaces() throws Exception {
        var namespaces = admin.namespaces();
        namespaces.createNamespace(NAMESPACE, 4);
        refused(ConflictException.class, 409, () -> namespaces.createNamespace(NAMESPACE));
        refused(NotFoundException.class, 404, () -> namespaces.createNamespace("none/orders"));
        namespaces.createNamespace("shop/gone", Set.of(cluster));
        same(List.of("shop/gone", NAMESPACE), namespaces.getNamespaces("shop"));
        refused(NotFoundException.class, 404, () -> namespaces.getNamespaces("none"));
        same(4, namespaces.getBundles(NAMESPACE).getNumBundles());
        same(4, namespaces.getPolicies(NAMESPACE).bundles.getNumBundles());
        same(List.of(cluster), namespaces.getNamespaceReplicationClusters(NAMESPACE));
        same(List.of(), namespaces.getTopics(NAMESPACE));
        refused(ConflictException.class, 409, () -> admin.tenants().deleteTenant("shop"));
        namespaces.deleteNamespace("shop/gone");
        refused(NotFoundException.class, 404, () -> namespaces.deleteNamespace("shop/gone"));
        refused(NotFoundException.class, 404, () -> namespaces.getPolicies("shop/gone"));
        refused(NotFoundException.class, 404, () -> namespaces.getTopics("shop/gone"));
        namespaces.unload(NAMESPACE);
        String bundle = namespaces.getBundles(NAMESPACE).getBoundaries().get(0) + "_" + namespaces.getBundles(NAMESPACE).getBoundaries().get(1);
        namespaces.unloadNamespaceBundle(NAMESPACE, bundle);
    }

    static void permissions(String url, String token) throws Exception {
        var namespaces = admin.namespaces();
        admin.topics().createNonPartitionedTopic(TOPIC);
        try (PulsarAdmin app = admin(url, token); PulsarAdmin nobody = admin(url, "")) {
            refused(NotAuthorizedException.class, 401, () -> nobody.topics().getStats(TOPIC));
            refused(NotAuthorizedException.class, 403, () -> app.topics().getStats(TOPIC));
            refused(NotAuthorizedException.class, 403, () -> app.topics().createNonPartitionedTopic(TOPIC + "-not"));
            refused(NotAuthorizedException.class, 403, () -> app.tenants().getTenants());
            namespaces.grantPermissionOnNamespace(NAMESPACE, "app", Set.of(AuthAction.consume));
            same(Map.of("app", Set.of(AuthAction.consume)), namespaces.getPermissions(NAMESPACE));
            app.topics().getStats(TOPIC);
            namespaces.revokePermissionsOnNamespace(NAMESPACE, "app");
            same(Map.of(), namespaces.getPermissions(NAMESPACE));
            admin.topics().grantPermission(TOPIC, "app", Set.of(AuthAction.produce, AuthAction.consume));
            same(Set.of(AuthAction.produce, AuthAction.consume), admin.topics().getPermissions(TOPIC).get("app"));
            app.topics().getStats(TOPIC);
            admin.topics().revokePermissions(TOPIC, "app");
            same(Map.of(), admin.topics().getPermissions(TOPIC));
            refused(PreconditionFailedException.class, 412, () -> admin.topics().revokePermissions(TOPIC, "app"));
        }
        namespaces.grantPermissionOnSubscription(NAMESPACE, "s", Set.of("app", "other"));
        same(Map.of("s", Set.of("app", "other")), namespaces.getPermissionOnSubscription(NAMESPACE));
        namespaces.revokePermissionOnSubscription(NAMESPACE, "s", "other");
        same(Map.of("s", Set.of("app")), namespaces.getPermissionOnSubscription(NAMESPACE));
        namespaces.grantPermissionOnSubscription(NAMESPACE, "s", Set.of());
        namespaces.setSubscriptionAuthMode(NAMESPACE, SubscriptionAuthMode.Prefix);
        same(SubscriptionAuthMode.Prefix, namespaces.getSubscriptionAuthMode(NAMESPACE));
        namespaces.setSubscriptionAuthMode(NAMESPACE, SubscriptionAuthMode.None);
        refused(NotFoundException.class, 404, () -> namespaces.getPermissions("shop/none"));
    }

    static void topics() throws Exception {
        var topics = admin.topics();
        refused(ConflictException.class, 409, () -> topics.createNonPartitionedTopic(TOPIC));
        refused(NotFoundException.class, 404, () -> topics.createNonPartitionedTopic("persistent://shop/none/one"));
        same(List.of(TOPIC), topics.getList(NAMESPACE));
        same(List.of(TOPIC), admin.namespaces().getTopics(NAMESPACE, ListNamespaceTopicsOptions.builder().mode(Mode.ALL).build()));
        refused(ConflictException.class, 409, () -> admin.namespaces().deleteNamespace(NAMESPACE));
        topics.updateProperties(TOPIC, Map.of("team", "till"));
        same(Map.of("team", "till"), topics.getProperties(TOPIC));
        topics.removeProperties(TOPIC, "team");
        same(Map.of(), topics.getProperties(TOPIC));
        same(0, topics.getPartitionedTopicMetadata(TOPIC).partitions);
        refused(NotFoundException.class, 404, () -> topics.getStats(TOPIC + "-none"));
        refused(NotFoundException.class, 404, () -> topics.getInternalStats(TOPIC + "-none"));
        refused(NotFoundException.class, 404, () -> topics.delete(TOPIC + "-none"));
        please("publish " + TOPIC + " 5");
        same(5L, topics.getStats(TOPIC).getMsgInCounter());
        same(5L, topics.getInternalStats(TOPIC).numberOfEntries);
        MessageId last = topics.getLastMessageId(TOPIC);
        same(0L, topics.getBacklogSizeByMessageId(TOPIC, last));
        same("4", text(topics.examineMessage(TOPIC, "latest", 1)));
        same("1", text(topics.examineMessage(TOPIC, "earliest", 2)));
        refused(NotFoundException.class, 404, () -> topics.examineMessage(TOPIC, "earliest", 6));
        same(true, admin.lookups().lookupTopic(TOPIC).startsWith("pulsar://"));
        same(true, admin.lookups().getBundleRange(TOPIC).matches("0x[0-9a-f]{8}_0x[0-9a-f]{8}"));
        topics.unload(TOPIC);
        same(LongRunningProcessStatus.Status.NOT_RUN, topics.compactionStatus(TOPIC).status);
        topics.triggerCompaction(TOPIC);
        topics.createNonPartitionedTopic(TOPIC + "-ended");
        topics.terminateTopic(TOPIC + "-ended");
        topics.delete(TOPIC + "-ended");
    }

    static void storedTopics() throws Exception {
        var topics = admin.topics();
        String stored = TOPIC + "-stored";
        topics.createNonPartitionedTopic(stored);
        topics.createSubscription(stored, "audit", MessageId.earliest);
        please("publish " + stored + " 5");
        var backlog = topics.analyzeSubscriptionBacklog(stored, "audit", Optional.empty());
        same(5L, backlog.getEntries());
        same(5L, backlog.getFilterAcceptedMessages());
        same(false, backlog.isAborted());
        MessageId last = topics.getLastMessageId(stored);
        same(1L, topics.analyzeSubscriptionBacklog(stored, "audit", Optional.of(last)).getEntries());
        topics.unload(stored);
        same(LongRunningProcessStatus.Status.NOT_RUN, topics.offloadStatus(stored).getStatus());
        topics.triggerOffload(stored, last);
        while (topics.offloadStatus(stored).getStatus() == LongRunningProcessStatus.Status.RUNNING) {
            Thread.sleep(10);
        }
        same(LongRunningProcessStatus.Status.SUCCESS, topics.offloadStatus(stored).getStatus());
        same(true, topics.getInternalInfo(stored).contains("\"markDelete\""));
        topics.trimTopic(stored);
        same(5L, topics.getInternalStats(stored).numberOfEntries);
        topics.truncate(stored);
        same(0L, topics.getInternalStats(stored).numberOfEntries);
        same(0L, topics.analyzeSubscriptionBacklog(stored, "audit", Optional.empty()).getEntries());
        refused(NotFoundException.class, 404, () -> topics.truncate(stored + "-none"));
        topics.delete(stored);
    }

    static void cluster() throws Exception {
        var brokers = admin.brokers();
        same(true, brokers.getDynamicConfigurationNames().contains("retention_ms"));
        brokers.updateDynamicConfiguration("retention_ms", "7d");
        same(Map.of("retention_ms", "7d"), brokers.getAllDynamicConfigurations());
        same("604800000", brokers.getRuntimeConfigurations().get("retention_ms"));
        brokers.deleteDynamicConfiguration("retention_ms");
        same(Map.of(), brokers.getAllDynamicConfigurations());
        refused(PreconditionFailedException.class, 412, () -> brokers.updateDynamicConfiguration("listen", "x"));
        same(true, brokers.getInternalConfigurationData().getMetadataStoreUrl().startsWith("sqlite:"));
        var stats = admin.brokerStats();
        same(true, stats.getLoadReport().getBrokerVersionString().length() > 0);
        same(true, stats.getTopics().contains(NAMESPACE));
        same(true, stats.getMetrics().contains("quire_serving_topics_loaded"));
        same("[]", stats.getMBeans());
        refused(ServerSideErrorException.class, 501, () -> stats.getAllocatorStats("default"));
        same(1, admin.bookies().getBookies().getBookies().size());
        same(Map.of(), admin.bookies().getBookiesRackInfo());
        var edges = admin.namespaces().getBundles(NAMESPACE).getBoundaries();
        String bundle = edges.get(0) + "_" + edges.get(1);
        admin.namespaces().clearNamespaceBundleBacklog(NAMESPACE, bundle);
        same(List.of(), admin.topics().getListInBundle(NAMESPACE, bundle));
    }

    static String text(Message<byte[]> message) {
        return new String(message.getData());
    }

    static void partitions() throws Exception {
        var topics = admin.topics();
        topics.createPartitionedTopic(PARTS, 2, Map.of("team", "till"));
        refused(ConflictException.class, 409, () -> topics.createPartitionedTopic(PARTS, 3));
        refused(ConflictException.class, 409, () -> topics.createNonPartitionedTopic(PARTS));
        same(2, topics.getPartitionedTopicMetadata(PARTS).partitions);
        same(Map.of("team", "till"), topics.getProperties(PARTS));
        topics.updatePartitionedTopic(PARTS, 3);
        same(3, topics.getPartitionedTopicMetadata(PARTS).partitions);
        refused(PulsarAdminException.class, 400, () -> topics.updatePartitionedTopic(PARTS, 1));
        topics.createMissedPartitions(PARTS);
        same(List.of(PARTS), topics.getPartitionedTopicList(NAMESPACE));
        same(true, topics.getList(NAMESPACE).contains(PARTS + "-partition-2"));
        please("publish " + PARTS + " 9");
        same(9L, topics.getPartitionedStats(PARTS, true).getMsgInCounter());
        same(3, topics.getPartitionedStats(PARTS, true).getPartitions().size());
        same(3, topics.getPartitionedInternalStats(PARTS).partitions.size());
        refused(NotFoundException.class, 404, () -> topics.getPartitionedStats(TOPIC, true));
        same(3, admin.lookups().lookupPartitionedTopic(PARTS).size());
        topics.unload(PARTS);
        topics.triggerCompaction(PARTS);
        topics.createPartitionedTopic(PARTS + "-ended", 2);
        topics.createMissedPartitions(PARTS + "-ended");
        same(2, topics.terminatePartitionedTopic(PARTS + "-ended").size());
        topics.deletePartitionedTopic(PARTS + "-ended");
        refused(NotFoundException.class, 404, () -> topics.getPartitionedTopicMetadata(PARTS + "-ended"));
        refused(NotFoundException.class, 404, () -> topics.deletePartitionedTopic(PARTS + "-ended"));
    }

    static long backlog(String topic, String name) throws Exception {
        var stats = topic.equals(PARTS) ? admin.topics().getPartitionedStats(topic, false) : admin.topics().getStats(topic);
        return stats.getSubscriptions().get(name).getMsgBacklog();
    }

    static void subscriptions() throws Exception {
        var topics = admin.topics();
        topics.createSubscription(TOPIC, "s", MessageId.earliest, false, Map.of("a", "1"));
        topics.createSubscription(TOPIC, "end", MessageId.latest);
        refused(ConflictException.class, 409, () -> topics.createSubscription(TOPIC, "s", MessageId.earliest));
        same(List.of("end", "s"), topics.getSubscriptions(TOPIC));
        same(Map.of("a", "1"), topics.getSubscriptionProperties(TOPIC, "s"));
        topics.updateSubscriptionProperties(TOPIC, "s", Map.of("b", "2"));
        same(Map.of("b", "2"), topics.getSubscriptionProperties(TOPIC, "s"));
        same(Map.of(), topics.getInternalStats(TOPIC).cursors.get("s").properties);
        same(5L, backlog(TOPIC, "s"));
        same(0L, backlog(TOPIC, "end"));
        List<Message<byte[]>> peeked = topics.peekMessages(TOPIC, "s", 3);
        same(List.of("0", "1", "2"), peeked.stream().map(Walk::text).toList());
        same(List.of(0L, 1L, 2L), peeked.stream().map(Message::getSequenceId).toList());
        same(false, peeked.get(0).getProducerName().isEmpty());
        same(5L, backlog(TOPIC, "s"));
        topics.skipMessages(TOPIC, "s", 2);
        same(3L, backlog(TOPIC, "s"));
        topics.resetCursor(TOPIC, "s", peeked.get(1).getMessageId());
        same(4L, backlog(TOPIC, "s"));
        topics.resetCursor(TOPIC, "s", peeked.get(1).getMessageId(), true);
        same(3L, backlog(TOPIC, "s"));
        topics.resetCursor(TOPIC, "s", 1L);
        same(5L, backlog(TOPIC, "s"));
        topics.expireMessages(TOPIC, "s", peeked.get(0).getMessageId(), false);
        same(4L, backlog(TOPIC, "s"));
        topics.expireMessages(TOPIC, "s", 10_000);
        same(4L, backlog(TOPIC, "s"));
        topics.expireMessagesForAllSubscriptions(TOPIC, 10_000);
        topics.skipAllMessages(TOPIC, "s");
        same(0L, backlog(TOPIC, "s"));
        same("0", text(topics.getMessagesById(TOPIC, id(peeked.get(0))[0], id(peeked.get(0))[1]).get(0)));
        for (Call call : List.<Call>of(
            () -> topics.deleteSubscription(TOPIC, "none"), () -> topics.skipAllMessages(TOPIC, "none"),
            () -> topics.skipMessages(TOPIC, "none", 1), () -> topics.resetCursor(TOPIC, "none", 1L),
            () -> topics.expireMessages(TOPIC, "none", 1),
            () -> topics.getSubscriptionProperties(TOPIC, "none"))) {
            refused(NotFoundException.class, 404, call);
        }
        please("subscribe " + TOPIC + " busy");
        refused(PreconditionFailedException.class, 412, () -> topics.deleteSubscription(TOPIC, "busy"));
        refused(PreconditionFailedException.class, 412, () -> topics.delete(TOPIC));
        topics.deleteSubscription(TOPIC, "busy", true);
        please("leave " + TOPIC + " busy");
        try {
            topics.deleteSubscription(TOPIC, "busy");  // its consumer may have come back and made it again
        } catch (NotFoundException gone) {
        }
        topics.deleteSubscription(TOPIC, "end");
        same(List.of("s"), topics.getSubscriptions(TOPIC));
    }

    /** Names of subscriptions and topics reach the broker as they are, whatever has to be encoded in them; keys come back. */
    static void oddNames() throws Exception {
        var topics = admin.topics();
        String keyed = TOPIC + "-keyed";
        topics.createNonPartitionedTopic(keyed);
        topics.createSubscription(keyed, "s", MessageId.earliest);
        please("keyed " + keyed + " a+b%2F%C3%BC%25");
        same("a b/\u00fc%", topics.peekMessages(keyed, "s", 1).get(0).getKey());
        topics.delete(keyed, true);
        for (String name : List.of("app:worker", "my/sub", "with blank", "a+b", "100%", "\u00fc")) {
            topics.createSubscription(TOPIC, name, MessageId.earliest);
            same(true, topics.getStats(TOPIC).getSubscriptions().containsKey(name));
            topics.skipMessages(TOPIC, name, 2);
            same(3L, backlog(TOPIC, name));
            same("2", text(topics.peekMessages(TOPIC, name, 1).get(0)));
            topics.resetCursor(TOPIC, name, 1L);
            same(5L, backlog(TOPIC, name));
            topics.deleteSubscription(TOPIC, name);
            String topic = TOPIC + "-" + name.replace('/', '-');  // with a slash it is a name of Pulsar's first version
            topics.createNonPartitionedTopic(topic);
            same(true, topics.getList(NAMESPACE).contains(topic));
            topics.getStats(topic);
            topics.delete(topic);
        }
        same(List.of("s"), topics.getSubscriptions(TOPIC));
    }

    static long[] id(Message<byte[]> message) {
        String[] parts = message.getMessageId().toString().split(":");
        return new long[] {Long.parseLong(parts[0]), Long.parseLong(parts[1])};
    }

    /** Of a partitioned topic a subscription is one thing; single entries are asked of a partition, as in Pulsar. */
    static void onPartitions() throws Exception {
        var topics = admin.topics();
        topics.createSubscription(PARTS, "s", MessageId.earliest, false, Map.of("a", "1"));
        refused(ConflictException.class, 409, () -> topics.createSubscription(PARTS, "s", MessageId.earliest));
        same(List.of("s"), topics.getSubscriptions(PARTS));
        same(List.of("s"), topics.getSubscriptions(PARTS + "-partition-1"));
        same(Map.of("a", "1"), topics.getSubscriptionProperties(PARTS, "s"));
        topics.updateSubscriptionProperties(PARTS, "s", Map.of("b", "2"));
        same(Map.of("b", "2"), topics.getSubscriptionProperties(PARTS + "-partition-1", "s"));
        same(9L, backlog(PARTS, "s"));
        topics.skipAllMessages(PARTS, "s");
        same(0L, backlog(PARTS, "s"));
        topics.resetCursor(PARTS, "s", 1L);
        same(9L, backlog(PARTS, "s"));
        topics.resetCursor(PARTS, "s", MessageId.latest);
        same(0L, backlog(PARTS, "s"));
        topics.resetCursor(PARTS, "s", MessageId.earliest);
        topics.expireMessages(PARTS, "s", 10_000);
        topics.expireMessagesForAllSubscriptions(PARTS, 10_000);
        same(9L, backlog(PARTS, "s"));
        Message<byte[]> first = topics.peekMessages(PARTS + "-partition-1", "s", 1).get(0);
        refused(NotAllowedException.class, 405, () -> topics.peekMessages(PARTS, "s", 1));
        refused(NotAllowedException.class, 405, () -> topics.skipMessages(PARTS, "s", 1));
        refused(NotAllowedException.class, 405, () -> topics.resetCursor(PARTS, "s", first.getMessageId()));
        refused(NotAllowedException.class, 405, () -> topics.expireMessages(PARTS, "s", first.getMessageId(), false));
        refused(NotFoundException.class, 404, () -> topics.deleteSubscription(PARTS, "none"));
        topics.deleteSubscription(PARTS, "s");
        same(List.of(), topics.getSubscriptions(PARTS));
    }

    static void policiesOfNamespaces() throws Exception {
        var namespaces = admin.namespaces();
        same(null, namespaces.getRetention(NAMESPACE));
        namespaces.setRetention(NAMESPACE, new RetentionPolicies(60, 100));
        same(new RetentionPolicies(60, 100), namespaces.getRetention(NAMESPACE));
        refused(PulsarAdminException.class, 400, () -> namespaces.setRetention(NAMESPACE, new RetentionPolicies(0, 100)));
        namespaces.removeRetention(NAMESPACE);
        same(null, namespaces.getRetention(NAMESPACE));
        namespaces.setNamespaceMessageTTL(NAMESPACE, 3600);
        same(3600, namespaces.getNamespaceMessageTTL(NAMESPACE));
        refused(PreconditionFailedException.class, 412, () -> namespaces.setNamespaceMessageTTL(NAMESPACE, -1));
        namespaces.removeNamespaceMessageTTL(NAMESPACE);
        same(null, namespaces.getNamespaceMessageTTL(NAMESPACE));
        var quota = BacklogQuota.builder().limitSize(1 << 30).retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build();
        namespaces.setBacklogQuota(NAMESPACE, quota);
        same(1L << 30, namespaces.getBacklogQuotaMap(NAMESPACE).get(BacklogQuota.BacklogQuotaType.destination_storage).getLimitSize());
        namespaces.removeBacklogQuota(NAMESPACE);
        same(Map.of(), namespaces.getBacklogQuotaMap(NAMESPACE));
        namespaces.setDispatchRate(NAMESPACE, DispatchRate.builder().dispatchThrottlingRateInMsg(100).dispatchThrottlingRateInByte(1000).ratePeriodInSecond(2).build());
        same(100, namespaces.getDispatchRate(NAMESPACE).getDispatchThrottlingRateInMsg());
        namespaces.removeDispatchRate(NAMESPACE);
        namespaces.setPublishRate(NAMESPACE, new PublishRate(100, 1000));
        same(new PublishRate(100, 1000), namespaces.getPublishRate(NAMESPACE));
        namespaces.removePublishRate(NAMESPACE);
        namespaces.setDeduplicationStatus(NAMESPACE, true);
        same(true, namespaces.getDeduplicationStatus(NAMESPACE));
        namespaces.removeDeduplicationStatus(NAMESPACE);
        namespaces.setCompactionThreshold(NAMESPACE, 1 << 20);
        same(1L << 20, namespaces.getCompactionThreshold(NAMESPACE));
        namespaces.removeCompactionThreshold(NAMESPACE);
        namespaces.setSchemaCompatibilityStrategy(NAMESPACE, SchemaCompatibilityStrategy.BACKWARD);
        same(SchemaCompatibilityStrategy.BACKWARD, namespaces.getSchemaCompatibilityStrategy(NAMESPACE));
        same(true, namespaces.getIsAllowAutoUpdateSchema(NAMESPACE));
        same(false, namespaces.getSchemaValidationEnforced(NAMESPACE));
        namespaces.setSchemaValidationEnforced(NAMESPACE, true);
        same(true, namespaces.getSchemaValidationEnforced(NAMESPACE));
        namespaces.setSchemaValidationEnforced(NAMESPACE, false);
        refused(PulsarAdminException.class, 400, () -> namespaces.setPersistence(NAMESPACE, new PersistencePolicies(1, 1, 1, 1.5)));
        namespaces.setPersistence(NAMESPACE, new PersistencePolicies(1, 1, 1, 0));
        same(1, namespaces.getPersistence(NAMESPACE).getBookkeeperAckQuorum());
        namespaces.removePersistence(NAMESPACE);
        namespaces.setInactiveTopicPolicies(NAMESPACE, new InactiveTopicPolicies(InactiveTopicDeleteMode.delete_when_no_subscriptions, 600, false));
        same(600, namespaces.getInactiveTopicPolicies(NAMESPACE).getMaxInactiveDurationSeconds());
        namespaces.removeInactiveTopicPolicies(NAMESPACE);
        var creation = AutoTopicCreationOverride.builder().allowAutoTopicCreation(true).topicType("partitioned").defaultNumPartitions(3).build();
        namespaces.setAutoTopicCreation(NAMESPACE, creation);
        same(creation, namespaces.getAutoTopicCreation(NAMESPACE));
        admin.topics().createSubscription(TOPIC + "-made", "s", MessageId.earliest);
        same(3, admin.topics().getPartitionedTopicMetadata(TOPIC + "-made").partitions);
        admin.topics().deletePartitionedTopic(TOPIC + "-made");
        namespaces.removeAutoTopicCreation(NAMESPACE);
        same(0, namespaces.getMaxTopicsPerNamespace(NAMESPACE));
        namespaces.setMaxTopicsPerNamespace(NAMESPACE, 100);
        same(100, namespaces.getMaxTopicsPerNamespace(NAMESPACE));
        namespaces.removeMaxTopicsPerNamespace(NAMESPACE);
        same(0, namespaces.getMaxTopicsPerNamespace(NAMESPACE));
        namespaces.setMaxProducersPerTopic(NAMESPACE, 10);
        same(10, namespaces.getMaxProducersPerTopic(NAMESPACE));
        namespaces.removeMaxProducersPerTopic(NAMESPACE);
        namespaces.setMaxUnackedMessagesPerSubscription(NAMESPACE, 1000);
        same(1000, namespaces.getMaxUnackedMessagesPerSubscription(NAMESPACE));
        namespaces.removeMaxUnackedMessagesPerSubscription(NAMESPACE);
        same(null, namespaces.getMaxUnackedMessagesPerSubscription(NAMESPACE));
        same(Set.of(), namespaces.getSubscriptionTypesEnabled(NAMESPACE));
        namespaces.setSubscriptionTypesEnabled(NAMESPACE, Set.of(SubscriptionType.Shared, SubscriptionType.Key_Shared));
        same(Set.of(SubscriptionType.Shared, SubscriptionType.Key_Shared), namespaces.getSubscriptionTypesEnabled(NAMESPACE));
        namespaces.removeSubscriptionTypesEnabled(NAMESPACE);
        var subscribing = AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(false).build();
        namespaces.setAutoSubscriptionCreation(NAMESPACE, subscribing);
        same(false, namespaces.getAutoSubscriptionCreation(NAMESPACE).isAllowAutoSubscriptionCreation());
        namespaces.removeAutoSubscriptionCreation(NAMESPACE);
        namespaces.setSubscribeRate(NAMESPACE, new SubscribeRate(5, 60));
        same(new SubscribeRate(5, 60), namespaces.getSubscribeRate(NAMESPACE));
        namespaces.removeSubscribeRate(NAMESPACE);
        same(false, namespaces.getEncryptionRequiredStatus(NAMESPACE));
        namespaces.setEncryptionRequiredStatus(NAMESPACE, true);
        same(true, namespaces.getEncryptionRequiredStatus(NAMESPACE));
        namespaces.setEncryptionRequiredStatus(NAMESPACE, false);
        namespaces.setProperties(NAMESPACE, Map.of("team", "billing", "tier", "1"));
        namespaces.setProperty(NAMESPACE, "tier", "gold");
        same(Map.of("team", "billing", "tier", "gold"), namespaces.getProperties(NAMESPACE));
        same("gold", namespaces.getProperty(NAMESPACE, "tier"));
        same("gold", namespaces.removeProperty(NAMESPACE, "tier"));
        same(null, namespaces.getProperty(NAMESPACE, "tier"));
        namespaces.clearProperties(NAMESPACE);
        var strategy = namespaces.getSchemaCompatibilityStrategy(NAMESPACE);
        namespaces.setSchemaCompatibilityStrategy(NAMESPACE, SchemaCompatibilityStrategy.UNDEFINED);
        same(SchemaAutoUpdateCompatibilityStrategy.Full, namespaces.getSchemaAutoUpdateCompatibilityStrategy(NAMESPACE));
        namespaces.setSchemaAutoUpdateCompatibilityStrategy(NAMESPACE, SchemaAutoUpdateCompatibilityStrategy.Backward);
        same(SchemaCompatibilityStrategy.BACKWARD, namespaces.getSchemaCompatibilityStrategy(NAMESPACE));
        namespaces.setSchemaCompatibilityStrategy(NAMESPACE, strategy);
        namespaces.setDeduplicationSnapshotInterval(NAMESPACE, 120);
        same(120, namespaces.getDeduplicationSnapshotInterval(NAMESPACE));
        namespaces.removeDeduplicationSnapshotInterval(NAMESPACE);
        namespaces.setOffloadDeleteLag(NAMESPACE, 60, TimeUnit.SECONDS);
        same(60_000L, namespaces.getOffloadDeleteLagMs(NAMESPACE));
        namespaces.clearOffloadDeleteLag(NAMESPACE);
        refused(ServerSideErrorException.class, 501, () -> namespaces.setOffloadThreshold(NAMESPACE, 1));
        same(40.0, admin.resourceQuotas().getDefaultResourceQuota().getMsgRateIn());
        refused(NotFoundException.class, 404, () -> namespaces.setRetention("shop/none", new RetentionPolicies(60, 100)));
        refused(NotFoundException.class, 404, () -> namespaces.getRetention("shop/none"));
    }

    static void policiesOfTopics() throws Exception {
        var policies = admin.topicPolicies();
        same(null, policies.getRetention(TOPIC));
        policies.setRetention(TOPIC, new RetentionPolicies(60, 100));
        same(new RetentionPolicies(60, 100), policies.getRetention(TOPIC));
        policies.removeRetention(TOPIC);
        policies.setMessageTTL(TOPIC, 60);
        same(60, policies.getMessageTTL(TOPIC));
        policies.setDeduplicationStatus(TOPIC, true);
        same(true, policies.getDeduplicationStatus(TOPIC));
        policies.setCompactionThreshold(TOPIC, 1000);
        same(1000L, policies.getCompactionThreshold(TOPIC));
        policies.setDispatchRate(TOPIC, DispatchRate.builder().dispatchThrottlingRateInMsg(10).dispatchThrottlingRateInByte(-1).ratePeriodInSecond(1).build());
        same(10, policies.getDispatchRate(TOPIC).getDispatchThrottlingRateInMsg());
        policies.setMaxMessageSize(TOPIC, 1000);
        same(1000, policies.getMaxMessageSize(TOPIC));
        policies.setBacklogQuota(TOPIC, BacklogQuota.builder().limitTime(60).retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction).build(), BacklogQuota.BacklogQuotaType.message_age);
        same(new TreeSet<>(Set.of(BacklogQuota.BacklogQuotaType.message_age)), new TreeSet<>(policies.getBacklogQuotaMap(TOPIC).keySet()));
        policies.deleteTopicPolicies(TOPIC);
        same(null, policies.getMessageTTL(TOPIC));
        same(Map.of(), policies.getBacklogQuotaMap(TOPIC));
        policies.setMaxConsumers(TOPIC, 10);
        same(10, policies.getMaxConsumers(TOPIC));
        policies.removeMaxConsumers(TOPIC);
        policies.setMaxUnackedMessagesOnSubscription(TOPIC, 1000);
        same(1000, policies.getMaxUnackedMessagesOnSubscription(TOPIC));
        policies.setSubscriptionTypesEnabled(TOPIC, Set.of(SubscriptionType.Shared));
        same(Set.of(SubscriptionType.Shared), policies.getSubscriptionTypesEnabled(TOPIC));
        policies.setSubscribeRate(TOPIC, new SubscribeRate(5, 60));
        same(new SubscribeRate(5, 60), policies.getSubscribeRate(TOPIC));
        var rate = DispatchRate.builder().dispatchThrottlingRateInMsg(10).dispatchThrottlingRateInByte(-1).ratePeriodInSecond(1).build();
        policies.setSubscriptionDispatchRate(TOPIC, "s", rate);
        same(10, policies.getSubscriptionDispatchRate(TOPIC, "s").getDispatchThrottlingRateInMsg());
        policies.removeSubscriptionDispatchRate(TOPIC, "s");
        same(null, policies.getSubscriptionDispatchRate(TOPIC, "s"));
        policies.setAutoSubscriptionCreation(TOPIC, AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(false).build());
        same(false, policies.getAutoSubscriptionCreation(TOPIC, false).isAllowAutoSubscriptionCreation());
        policies.deleteTopicPolicies(TOPIC);
        same(List.of(), admin.topics().getShadowTopics(TOPIC));
        same(false, admin.topics().getSchemaValidationEnforced(TOPIC, false));
        refused(ServerSideErrorException.class, 501, () -> admin.topics().setShadowTopics(TOPIC, List.of(TOPIC + "-shadow")));
        refused(NotFoundException.class, 404, () -> policies.setMessageTTL(TOPIC + "-none", 60));
    }

    static void end() throws Exception {
        admin.namespaces().clearNamespaceBacklog(NAMESPACE);
        same(0L, backlog(TOPIC, "s"));
        admin.namespaces().unsubscribeNamespace(NAMESPACE, "s");
        same(List.of(), admin.topics().getSubscriptions(TOPIC));
        admin.topics().delete(TOPIC, true);
        admin.topics().deletePartitionedTopic(PARTS, true);
        admin.namespaces().deleteNamespace(NAMESPACE);
        admin.tenants().deleteTenant("shop");
    }
}
