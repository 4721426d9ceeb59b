import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Parameter;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.Lookup;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.Schemas;
import org.apache.pulsar.client.admin.Tenants;
import org.apache.pulsar.client.admin.TopicPolicies;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.admin.GetStatsOptions;
import org.apache.pulsar.client.admin.GrantTopicPermissionOptions;
import org.apache.pulsar.client.admin.ListNamespaceTopicsOptions;
import org.apache.pulsar.client.admin.ListTopicsOptions;
import org.apache.pulsar.client.admin.RevokeTopicPermissionOptions;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.policies.data.*;
import org.apache.pulsar.common.protocol.schema.PostSchemaPayload;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Calls each method of the stock admin client once, for tenants, namespaces, topics, their policies, schemas and
 * lookups, and prints what came of it: `Sweep URL CLUSTER`; a line is `INTERFACE.METHOD(PARAMETERS) STATUS REASON`.
 * 200 is an answer that the client could read, 0 one that it could not.
 */
public class Sweep {
    /** What the methods of Namespaces are called for: each limit they set is 1, so no topic lives in it. */
    static final String NAMESPACE = "sweep/settings";
    static String cluster;
    static int made;

    public static void main(String[] arguments) throws Exception {
        cluster = arguments[1];
        PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[0]).build();
        try {
            admin.tenants().createTenant("sweep", tenant());
            admin.namespaces().createNamespace(NAMESPACE);
            sweep(admin, Tenants.class, admin.tenants());
            sweep(admin, Namespaces.class, admin.namespaces());
            sweep(admin, Topics.class, admin.topics());
            sweep(admin, TopicPolicies.class, admin.topicPolicies());
            sweep(admin, Schemas.class, admin.schemas());
            sweep(admin, Lookup.class, admin.lookups());
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();  // the client's threads would keep the program alive
            System.exit(1);
        }
    }

    static TenantInfo tenant() {
        return TenantInfo.builder().allowedClusters(Set.of(cluster)).adminRoles(Set.of()).build();
    }

    static void sweep(PulsarAdmin admin, Class<?> what, Object target) throws Exception {
        List<Method> methods = new ArrayList<>();
        for (Method method : what.getMethods()) {
            if (!method.getName().endsWith("Async")) {
                methods.add(method);
            }
        }
        methods.sort(Comparator.comparing(Sweep::signature));
        for (Method method : methods) {
            String topic = what == Topics.class || what == TopicPolicies.class || what == Schemas.class ? fresh(admin) : null;
            System.out.println(what.getSimpleName() + "." + signature(method) + " " + outcome(method, target, what, topic));
        }
    }

    /** A topic of its own, for what deletes or ends it. */
    static String fresh(PulsarAdmin admin) throws Exception {
        String name = "persistent://public/default/sweep-" + ++made;
        admin.topics().createNonPartitionedTopic(name);
        admin.topics().createSubscription(name, "s", MessageId.earliest);
        return name;
    }

    static String signature(Method method) {
        return method.getName() + Arrays.stream(method.getParameterTypes()).map(Class::getSimpleName).toList()
            .toString().replace("[", "(").replace("]", ")").replace(" ", "");
    }

    static String outcome(Method method, Object target, Class<?> what, String topic) {
        Parameter[] parameters = method.getParameters();
        Object[] values = new Object[parameters.length];
        for (int i = 0; i < values.length; i++) {
            values[i] = value(method, i, parameters[i].getParameterizedType(), what, topic);
        }
        try {
            method.invoke(target, values);
            return "200";
        } catch (InvocationTargetException error) {
            Throwable cause = error.getCause();
            if (cause instanceof PulsarAdminException refused) {
                return (isAnswer(refused) ? refused.getStatusCode() : 0) + " " + line(refused);
            }
            return "0 " + line(cause);
        } catch (Exception error) {
            return "0 " + line(error);
        }
    }

    static boolean isAnswer(PulsarAdminException refused) {
        return refused.getHttpError() != null;
    }

    static String line(Throwable error) {
        return String.valueOf(error).replace("\n", " ");
    }

    static Object value(Method method, int index, Type type, Class<?> what, String topic) {
        Class<?> raw = (Class<?>) (type instanceof ParameterizedType generic ? generic.getRawType() : type);
        String name = method.getName();
        if (raw == String.class) {
            return text(name, index, what, topic);
        }
        if (raw == int.class || raw == Integer.class) {
            return 1;
        }
        if (raw == long.class || raw == Long.class) {
            return 1L;
        }
        if (raw == boolean.class || raw == Boolean.class) {
            return true;
        }
        if (raw == Set.class || raw == List.class || raw == Map.class) {
            return many(name, raw, (ParameterizedType) type, topic);
        }
        return Sample.of(raw, topic);
    }

    static String text(String method, int index, Class<?> what, String topic) {
        if (what == Tenants.class) {
            return "sweep";
        }
        if (topic != null) {
            if (index == 0 || method.equals("createShadowTopic")) {
                return method.startsWith("getList") || method.startsWith("getPartitionedTopicList") ? "public/default" : topic;
            }
            return method.equals("examineMessage") ? "earliest" : method.contains("InBundle") ? "0x00000000_0xffffffff" : "s";
        }
        if (what == Lookup.class) {
            return index == 0 ? "persistent://public/default/looked-up" : "s";
        }
        if (index == 0) {
            return method.startsWith("getAnti") ? cluster : method.startsWith("createNamespace") ? "sweep/n" + ++made
                : method.equals("getNamespaces") ? "sweep" : method.startsWith("deleteNamespace") ? "sweep/n1" : NAMESPACE;
        }
        return method.contains("Bundle") && index == 1 ? "0x00000000_0x10000000" : "s";
    }

    static Object many(String method, Class<?> raw, ParameterizedType type, String topic) {
        if (raw == Map.class) {
            Type key = type.getActualTypeArguments()[0];
            return key == String.class ? Map.of("key", "value") : Map.of();
        }
        Type of = type.getActualTypeArguments()[0];
        Object one = of == String.class ? (method.contains("luster") ? cluster : topic == null ? "s" : topic)
            : of == Long.class ? Long.valueOf(1)
            : of instanceof Class<?> known && known.isEnum() ? known.getEnumConstants()[0]
            : of instanceof Class<?> known ? Sample.of(known, topic) : null;
        if (one == null) {
            return raw == Set.class ? Set.of() : List.of();
        }
        return raw == Set.class ? Set.of(one) : List.of(one);
    }

    /** One of each class that the client's methods take. */
    static class Sample {
        static Object of(Class<?> raw, String topic) {
            if (raw.isEnum()) {
                return raw.getEnumConstants()[0];
            }
            if (raw == TimeUnit.class) {
                return TimeUnit.SECONDS;
            }
            return switch (raw.getSimpleName()) {
                case "TenantInfo" -> tenant();
                case "MessageId" -> MessageId.earliest;
                case "Optional" -> Optional.empty();
                case "RetentionPolicies" -> new RetentionPolicies(10, 10);
                case "PersistencePolicies" -> new PersistencePolicies(1, 1, 1, 0);
                case "BacklogQuota" -> BacklogQuota.builder().limitSize(1000).limitTime(10)
                    .retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build();
                case "PublishRate" -> new PublishRate(10, 1000);
                case "DispatchRate" -> DispatchRate.builder().dispatchThrottlingRateInMsg(10).dispatchThrottlingRateInByte(1000).ratePeriodInSecond(1).build();
                case "SubscribeRate" -> new SubscribeRate(10, 10);
                case "InactiveTopicPolicies" -> new InactiveTopicPolicies(InactiveTopicDeleteMode.delete_when_no_subscriptions, 60, true);
                case "DelayedDeliveryPolicies" -> DelayedDeliveryPolicies.builder().active(true).tickTime(1000).maxDeliveryDelayInMillis(0).build();
                case "AutoTopicCreationOverride" -> AutoTopicCreationOverride.builder().allowAutoTopicCreation(true).topicType("non-partitioned").build();
                case "AutoSubscriptionCreationOverride" -> AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(true).build();
                case "OffloadPolicies" -> OffloadPolicies.builder().managedLedgerOffloadDriver("S3").build();
                case "BookieAffinityGroupData" -> BookieAffinityGroupData.builder().bookkeeperAffinityGroupPrimary("a").build();
                case "BundlesData" -> BundlesData.builder().numBundles(2).boundaries(List.of("0x00000000", "0x80000000", "0xffffffff")).build();
                case "Policies" -> new Policies();
                case "EntryFilters" -> new EntryFilters("a");
                case "GetStatsOptions" -> GetStatsOptions.builder().build();
                case "ListTopicsOptions" -> ListTopicsOptions.EMPTY;
                case "ListNamespaceTopicsOptions" -> ListNamespaceTopicsOptions.builder().build();
                case "GrantTopicPermissionOptions" -> GrantTopicPermissionOptions.builder().topic(topic == null ? "persistent://public/default/t" : topic).role("r").actions(Set.of(AuthAction.produce)).build();
                case "RevokeTopicPermissionOptions" -> RevokeTopicPermissionOptions.builder().topic(topic == null ? "persistent://public/default/t" : topic).role("r").build();
                case "PostSchemaPayload" -> new PostSchemaPayload("STRING", "", Map.of());
                case "SchemaInfo" -> SchemaInfo.builder().name("s").type(SchemaType.STRING).schema(new byte[0]).properties(Map.of()).build();
                default -> null;
            };
        }
    }
}
